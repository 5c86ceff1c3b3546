# Runs apt with a state folder of its own: the packages, lists and architectures of the host system
# are neither read for dependencies nor changed. The including script must have set $apt_state to
# this folder and $work to one for scratch files, and must have included common.sh.
# shellcheck shell=sh

# Prints the machine's own Debian sources, one line each, in the form that allows a choice of
# architectures. Only Debian's own archive for this release counts. Its security archive is listed
# for amd64 only, because its i386 index is not always consistent.
debian_sources() {
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] && printf '\n%%file %s\n' "$file" && cat "$file" && printf '\n\n'
    done | perl "$repo/scripts/apt-sources" "$codename"
}

ready_apt() {
    [ -z "${apt_is_ready:-}" ] || return 0
    mkdir -p "$apt_state/state/lists/partial" "$apt_state/cache/archives/partial"
    debian_sources >"$apt_state/sources.list"
    [ -s "$apt_state/sources.list" ] ||
        die "no Debian archive for this release among the sources in /etc/apt"
    # A script that needs source packages sets this variable.
    [ -z "${apt_source_packages:-}" ] ||
        printf '%s\n' "$(sed 's/^deb /deb-src /' "$apt_state/sources.list")" >>"$apt_state/sources.list"
    : >"$apt_state/status"
    cat >"$apt_state/apt.conf" <<-END
		Dir::State "$apt_state/state";
		Dir::State::status "$apt_state/status";
		Dir::Cache "$apt_state/cache";
		Dir::Etc::sourcelist "$apt_state/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferencesparts "/dev/null";
		APT::Architecture "amd64";
		#clear APT::Architectures;
		APT::Architectures { "amd64"; "i386"; };
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear DPkg::Post-Invoke;
		#clear Acquire::IndexTargets::deb::DEP-11;
		#clear Acquire::IndexTargets::deb::DEP-11-icons;
		Acquire::Languages "none";
		Acquire::GzipIndexes "true";
		Acquire::Retries "3";
		APT::Sandbox::User "";
	END
    say "updating package lists (private to ${apt_state%/*})"
    apt_get update >"$work/apt.log" 2>&1 || {
        cat "$work/apt.log" >&2
        die "apt-get update failed; is the network reachable?"
    }
    apt_is_ready=yes
}
apt_get() { apt-get -q -c "$apt_state/apt.conf" "$@"; }
apt_cache() { apt-cache -c "$apt_state/apt.conf" "$@"; }
