//! The structures of this crate against those of the installed `infiniband/verbs.h`.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use elver_preload::layout::layouts;
use elver_preload::{cm, mlx5};

#[test]
fn structures_are_laid_out_as_the_installed_header_says() {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n#include <infiniband/sa.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n",
    );
    let mut expected = String::new();
    for (name, size, fields) in
        layouts().into_iter().chain(cm::abi::layouts()).chain(mlx5::layout::layouts())
    {
        writeln!(c, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        writeln!(expected, "{name} {size}").unwrap();
        for (field, offset) in fields {
            writeln!(c, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
                .unwrap();
            writeln!(expected, "{name}.{field} {offset}").unwrap();
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
    let printed = String::from_utf8(printed.stdout).unwrap();
    for (ours, theirs) in expected.lines().zip(printed.lines()) {
        assert_eq!(ours, theirs, "ours on the left, the header's on the right");
    }
    assert_eq!(expected.lines().count(), printed.lines().count());
}
