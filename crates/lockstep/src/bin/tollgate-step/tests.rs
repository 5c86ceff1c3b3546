//! States after instructions, determined by hand.

use super::{Arguments, step_all};
use serde_json::{Value, json};

fn run(input: &str) -> Result<Vec<Value>, String> {
    let arguments = Arguments {
        file: None,
        memory: 2,
        verify_code: true,
    };
    let mut output = Vec::new();
    let result = step_all(&arguments, input.as_bytes(), &mut output);
    let lines = String::from_utf8(output).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    result
        .map(|()| lines.collect())
        .map_err(|error| error.to_string())
}

/// The answer for one state.
fn step(state: &Value) -> Value {
    run(&state.to_string()).unwrap().remove(0)
}

/// Bytes at an address, in the format of a state.
fn bytes(address: u64, bytes: &[u8]) -> Vec<(u64, u8)> {
    (address..).zip(bytes.iter().copied()).collect()
}

#[test]
fn an_addition_in_real_mode_changes_register_flags_and_ip() {
    // add al, 7fh at 1000:0010
    let after = step(&json!({
        "name": "add",
        "regs": {"ax": "0x0101", "cs": "0x1000", "ip": 16, "flags": 2},
        "ram": bytes(0x1_0010, &[0x04, 0x7f]),
    }));
    assert_eq!(after["name"], "add");
    assert_eq!(after["mode"], "real");
    assert_eq!(after["regs"]["rax"], 0x180);
    assert_eq!(after["regs"]["rip"], 18);
    // OF, SF and AF; bit 1 is always set.
    assert_eq!(after["regs"]["rflags"], 0x892);
    assert_eq!(after["regs"]["cs"], 0x1000);
    assert_eq!(after["ram"], json!(bytes(0x1_0010, &[0x04, 0x7f])));
    assert_eq!(after.get("exception"), None);
}

#[test]
fn a_store_is_told_by_its_bytes_and_the_next_state_has_none_of_them() {
    // push ax; then a read at the same address
    let push = json!({
        "regs": {"ax": 0x1234, "ss": 0x2000, "sp": 0, "ip": 0},
        "ram": [[0, 0x50]],
    });
    let load = json!({
        "regs": {"ds": 0x2000, "bx": 0xfffe, "ip": 0},
        "ram": bytes(0, &[0x8b, 0x07]),
    });
    let answers = run(&format!("{push}\n\n{load}\n")).unwrap();
    assert_eq!(answers[0]["regs"]["rsp"], 0xfffe);
    assert_eq!(
        answers[0]["ram"],
        json!([[0, 0x50], [0x2_fffe, 0x34], [0x2_ffff, 0x12]])
    );
    assert_eq!(answers[1]["regs"]["rax"], 0);
}

#[test]
fn an_exception_is_delivered_through_the_states_own_table() {
    // div cl by zero, handler at 0300:0040
    let after = step(&json!({
        "regs": {"cs": 0x100, "ip": 5, "ss": 0, "sp": 0x800, "flags": "0x202"},
        "ram": ([bytes(0, &[0x40, 0, 0, 3]), bytes(0x1005, &[0xf6, 0xf1])].concat()),
    }));
    assert_eq!(after["exception"], 0);
    let regs = &after["regs"];
    assert_eq!((&regs["cs"], &regs["rip"]), (&json!(0x300), &json!(0x40)));
    assert_eq!((&regs["rsp"], &regs["rflags"]), (&json!(0x7fa), &json!(2)));
    // IP, CS and FLAGS; bytes that stay zero are not listed.
    let frame = [(0x7fa, 5), (0x7fd, 1), (0x7fe, 2), (0x7ff, 2)];
    assert!(
        frame
            .iter()
            .all(|it| after["ram"].as_array().unwrap().contains(&json!(it)))
    );
}

#[test]
fn what_is_written_can_be_read_again() {
    // mov ax, 1; mov ss, ax; hlt
    let first = json!({"regs": {"ip": 0}, "ram": bytes(0, &[0xb8, 1, 0, 0x8e, 0xd0, 0xf4])});
    let second = step(&first);
    let third = step(&second);
    let last = step(&third);
    assert_eq!(third["regs"]["ss"], 1);
    assert_eq!(last["regs"]["rip"], 6);
    assert_eq!(last["halted"], true);
    // The next bytes are zeros: add [bx+si], al
    assert_eq!(step(&last)["ram"][0], json!([0, 0xb9]));
}

#[test]
fn each_mode_decodes_as_it_should_and_says_so() {
    // 48h 05h ...: dec (e)ax; in 64-bit mode the prefix of add rax, imm32
    let ram = bytes(0x1000, &[0x48, 0x05, 1, 0, 0, 0x80]);
    for (mode, rax, length) in [
        ("real", 0x1_ffffu64, 1),
        ("vm86", 0x1_ffff, 1),
        ("protected16", 0x1_ffff, 1),
        ("protected32", 0xffff, 1),
        ("compatibility", 0xffff, 1),
        ("long64", 0xffff_ffff_8001_0001, 6),
    ] {
        let after =
            step(&json!({"mode": mode, "regs": {"eax": 0x1_0000, "eip": 0x1000}, "ram": ram}));
        assert_eq!(after["mode"], mode);
        assert_eq!(after["regs"]["rax"], rax, "{mode}");
        assert_eq!(after["regs"]["rip"], 0x1000 + length, "{mode}");
        assert_eq!(step(&after)["mode"], mode);
    }
}

#[test]
fn segments_have_their_hidden_parts_where_they_are_given() {
    // mov al, [ebx] beyond the limit, without a table that leads anywhere: shutdown
    let beyond = |limit: u64| {
        let data = json!({"selector": 16, "base": 0x2000, "limit": limit, "attributes": "0xc093"});
        step(&json!({
            "mode": "protected32",
            "regs": {"ebx": 0x10, "eip": 0, "ds": data, "idtr": {"base": 0, "limit": 0}},
            "ram": ([bytes(0, &[0x8a, 0x03]), vec![(0x2010, 0x5a)]].concat()),
        }))
    };
    assert_eq!(beyond(0x10)["regs"]["rax"], 0x5a);
    let refused = beyond(0xf);
    assert_eq!(
        (&refused["exception"], &refused["shutdown"]),
        (&json!(13), &json!(true))
    );
}

#[test]
fn page_tables_of_one_state_are_not_those_of_the_next() {
    // mov al, [401000h] through a table with one entry, which leads elsewhere the second time
    let state = |frame: u8| {
        let ram = [
            bytes(0, &[0xa0, 0x00, 0x10, 0x40, 0x00]),
            bytes(0x1000, &[0x03, 0x20]),
            bytes(0x1004, &[0x03, 0x20]),
            bytes(0x2000, &[0x03, 0x00]),
            bytes(0x2004, &[0x03, frame]),
            vec![(0x5000, 5), (0x6000, 6)],
        ];
        json!({
            "mode": "protected32",
            "regs": {"eip": 0, "cr0": "0xe0000011", "cr3": "0x1000"},
            "ram": (ram.concat()),
        })
    };
    let answers = run(&format!("{}\n{}", state(0x50), state(0x60))).unwrap();
    assert_eq!(answers[0]["regs"]["rax"], 5);
    assert_eq!(answers[1]["regs"]["rax"], 6);
    // The accessed bits were set.
    assert!(
        answers[1]["ram"]
            .as_array()
            .unwrap()
            .contains(&json!([0x2004, 0x23]))
    );
}

#[test]
fn a_line_that_is_no_state_is_refused_by_its_number() {
    let refused = |line: &str| run(&format!("{{}}\n{line}\n")).unwrap_err();
    for (line, says) in [
        ("{", "line 2: EOF while parsing"),
        ("{\"regs\": {\"aax\": 1}}", "line 2: unknown field `aax`"),
        ("{\"regs\": {\"ax\": \"12\"}}", "line 2: invalid value"),
        (
            "{\"regs\": {\"ax\": 1, \"eax\": 1}}",
            "line 2: duplicate field",
        ),
        (
            "{\"ram\": [[4294967296, 1]]}",
            "line 2: ram: there is no byte 0x100000000",
        ),
        ("{\"ram\": [[0, 256]]}", "line 2: invalid value"),
        ("{\"mode\": \"smm\"}", "line 2: unknown variant"),
        (
            "{\"regs\": {\"rax\": \"0x100000000\"}}",
            "line 2: a general register",
        ),
        (
            "{\"regs\": {\"cs\": \"0x10000\"}}",
            "line 2: cs: 0x10000 has too many bits",
        ),
        (
            "{\"regs\": {\"cr0\": \"0x80000000\"}}",
            "line 2: cr0: PG without PE",
        ),
        ("{\"regs\": {\"efer\": \"0x400\"}}", "line 2: efer: LMA"),
        ("{\"regs\": {\"cr4\": \"0x80000000\"}}", "line 2: cr0, cr4"),
        (
            "{\"mode\": \"long64\", \"regs\": {\"rip\": \"0x800000000000\"}}",
            "line 2: rip",
        ),
    ] {
        let error = refused(line);
        assert!(error.starts_with(says), "{error}");
    }
}

#[test]
fn a_shutdown_leaves_the_tool_as_it_was() {
    let shutdown = json!({
        "mode": "protected32",
        "regs": {"eip": 0, "idtr": {"base": 0, "limit": 0}},
        "ram": bytes(0, &[0x0f, 0x0b]),
    });
    let next = json!({"regs": {"ip": 0}, "ram": [[0, 0x40]]});
    let answers = run(&format!("{shutdown}\n{next}")).unwrap();
    assert_eq!(answers[0]["shutdown"], true);
    assert_eq!(answers[1]["regs"]["rax"], 1);
    assert_eq!(answers[1].get("shutdown"), None);
}
