//! The structures of this crate against those of the installed `infiniband/verbs.h`.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use elver_preload::layout::layouts;
use elver_preload::{cm, mlx5};

/// Each structure's size and each field's offset, a line each, as this crate has them and as a compiler that reads
/// the installed headers does.
fn both() -> [String; 2] {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n#include <infiniband/sa.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n",
    );
    let mut ours = String::new();
    for (name, size, fields) in
        layouts().into_iter().chain(cm::abi::layouts()).chain(mlx5::layout::layouts())
    {
        writeln!(c, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        writeln!(ours, "{name} {size}").unwrap();
        for (field, offset) in fields {
            writeln!(c, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
                .unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    c.push_str("return 0; }\n");
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    fs::write(&source, c).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "libibverbs-dev and a C compiler are needed: {said}");
    let printed = Command::new(&program).output().unwrap();
    [ours, String::from_utf8(printed.stdout).unwrap()]
}

#[test]
fn structures_are_laid_out_as_the_installed_header_says() {
    let [ours, theirs] = both();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs, "ours on the left, the header's on the right");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

/// Programs that are compiled with a current header find fields where they look: structures have grown at their
/// ends alone, or at its beginning the one that is found by its end.
#[test]
fn structures_have_only_grown_until_rdma_core_64() {
    let theirs: HashMap<&str, usize> = include_str!("layout/rdma-core-64.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').map(|(name, at)| (name, at.parse().unwrap())).unwrap())
        .collect();
    let mut grown = Vec::new();
    for (name, size, fields) in
        layouts().into_iter().chain(cm::abi::layouts()).chain(mlx5::layout::layouts())
    {
        let before = theirs[name].checked_sub(size);
        let before = before.unwrap_or_else(|| panic!("{name} has shrunk to {}", theirs[name]));
        if before > 0 {
            grown.push(name);
        }
        // From a context its operations are found backwards.
        let moved = if name == "verbs_context" { before } else { 0 };
        for (field, offset) in fields {
            assert_eq!(theirs[&*format!("{name}.{field}")], offset + moved, "{name}.{field}");
        }
    }
    let expected =
        ["ibv_port_attr", "verbs_context", "ibv_qp_ex", "mlx5dv_context_attr", "mlx5dv_context"];
    assert_eq!(grown, expected);
}
