# Makes the table of scripts/compare-speed from lines "machine round group row nanoseconds sum";
# `best` is the model of machine "tcg". If `json` names a file, the table goes there too:
# nanoseconds, and Tollgate's time divided by the other's.

{
    key = $4
    if (!(key in group)) { order[++rows] = key; group[key] = $3 }
    if ($5 == "-") next
    values[$1, key, ++count[$1, key]] = $5
    if ((key in sum) && sum[key] != $6) differs[key] = 1
    sum[key] = $6
}

function median(machine, key,    n, i, j, v, t) {
    n = count[machine, key]
    if (!n) return 0
    for (i = 1; i <= n; i++) v[i] = values[machine, key, i]
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

function show(value) { return value ? sprintf("%.*f", value < 100 ? 2 : 0, value) : "-" }
function quotient(a, b) { return a && b ? sprintf("%.2f", a / b) : "-" }

# Formats a member of a JSON object.
function member(name, value, digits) {
    return sprintf("\"%s\": %s", name, value ? sprintf("%.*f", digits, value) : "null")
}
function ratio(a, b) { return a && b ? a / b : 0 }
function write(text) { if (json != "") printf "%s", text > json }

function add(name, ours, theirs, host) {
    if (!(name in terms)) names[++means] = name
    if (ours && theirs) { logs[name] += log(ours / theirs); terms[name]++ }
    if (ours && host) { host_logs[name] += log(ours / host); host_terms[name]++ }
}

END {
    printf "%-5s %-16s %12s %18s %12s %8s", "group", "row (ns)", "tollgate", "tcg " best, "tcg max", "ratio"
    if (native == "yes") printf " %12s %8s", "native", "ratio"
    print ""
    write(sprintf("{\n  \"tcg\": \"%s\",\n  \"rows\": [", best))
    for (i = 1; i <= rows; i++) {
        key = order[i]
        ours = median("tollgate", key); a = median("tcg", key); b = median("tcg-max", key)
        # On the host, jobs would run the host's shell and tools instead of the guest's.
        host = group[key] == "job" ? 0 : median("native", key)
        theirs = a && (a < b || !b) ? a : b
        printf "%-5s %-16s %12s %18s %12s %8s", group[key], key, show(ours), show(a), show(b), quotient(ours, theirs)
        if (native == "yes") printf " %12s %8s", show(host), quotient(ours, host)
        print ""
        if (theirs && ours > theirs) lost = lost (lost == "" ? "" : ", ") group[key] "/" key
        write(sprintf("%s\n    {\"group\": \"%s\", \"row\": \"%s\", %s, %s, %s, %s, %s, %s}", \
            i > 1 ? "," : "", group[key], key, member("tollgate", ours, 3), member("tcg", a, 3), \
            member("tcg_max", b, 3), member("native", host, 3), member("times_tcg", ratio(ours, theirs), 4), \
            member("times_native", ratio(ours, host), 4)))
        add(group[key], ours, theirs, host)
        # The ratio of memcpy64M is far above all others and would dominate its group.
        if (group[key] == "mem" && key != "memcpy64M") add("mem without memcpy64M", ours, theirs, host)
    }
    for (i = 1; i <= means; i++) {
        name = names[i]
        if (name == "mem without memcpy64M") continue
        logs["all"] += logs[name]; terms["all"] += terms[name]
        host_logs["all"] += host_logs[name]; host_terms["all"] += host_terms[name]
    }
    names[++means] = "all"
    print ""
    write("\n  ],\n  \"means\": [")
    for (i = 1; i <= means; i++) {
        name = names[i]
        if (!terms[name]) continue
        write(sprintf("%s\n    {\"group\": \"%s\", %s, %s}", written++ ? "," : "", name, \
            member("times_tcg", exp(logs[name] / terms[name]), 4), \
            member("times_native", host_terms[name] ? exp(host_logs[name] / host_terms[name]) : 0, 4)))
        printf "geometric mean, %-22s %8.2f", name ":", exp(logs[name] / terms[name])
        if (host_terms[name]) printf "   native: %8.2f", exp(host_logs[name] / host_terms[name])
        print ""
    }
    write("\n  ]\n}\n")
    print "rows lost to TCG: " (lost == "" ? "none" : lost)
    for (key in differs) { print "different results: " key; bad = 1 }
    exit bad
}
