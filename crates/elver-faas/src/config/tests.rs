use elver::Gid;

use super::*;

const GOOD: &str =
    "[owners.a]\nuid = 60001\n[functions.f]\nowner = \"a\"\ncode = \"/f\"\nhandler = \"f.g\"\n";

#[test]
fn refusals_name_the_key() {
    assert!(Config::parse(GOOD).is_ok());
    for (more, said) in [
        ("surprise = 1\n", "surprise"),
        ("timeout_s = 0\n", "timeout_s"),
        ("unassigned_qps = 65\n", "unassigned_qps"),
        ("runtime = \"program\"\nsessions = 1\n", "functions.f.sessions is 1"),
        ("runtime = \"provided\"\nunassigned_qps = 2\n", "functions.f.unassigned_qps is 2"),
        ("destinations = [\"nowhere\"]\n", "\"nowhere\", which is no GID"),
        // Which others take for 10.0.0.8.
        ("destinations = [\"10.0.0.010\"]\n", "\"10.0.0.010\", which is no GID"),
        ("connections = \"rented\"\n", "unknown variant `rented`, expected `shared` or `leased`"),
        ("[owners.b]\nuid = 60001\n", "share the uid 60001"),
        ("[owners.root]\nuid = 0\n", "never run as root"),
        ("[owners.\"../x\"]\nuid = 7\n", "../x"),
        ("timeout_s = 9223372036854775807\n", "timeout_s"),
        ("memory_mb = 9223372036854775807\n", "memory_mb"),
        ("[platform]\nkeep_alive_s = 9223372036854775807\n", "platform.keep_alive_s"),
        ("[platform]\ninit_timeout_s = 9223372036854775807\n", "platform.init_timeout_s"),
        ("[platform]\ncontainer_memory_mb = 9223372036854775807\n", "platform.container_memory"),
        ("[platform]\nruntime = []\n", "platform.runtime"),
        ("[platform]\nimage = \"x\"\n", "platform.image"),
        ("[platform]\nruntime = [\"docker\"]\nrootfs = \"/x\"\n", "platform.rootfs"),
        ("[platform]\nruntime = [\"docker\"]\nuser_namespace = 7\n", "userns-remap"),
        ("[platform]\ndevices = [\"/etc/passwd\"]\n", "platform.devices has /etc/passwd"),
        ("[platform]\ndevices = [\"/dev/../etc/passwd\"]\n", "below /dev"),
        ("[platform]\ndevices = [\"/dev\"]\n", "below /dev"),
        ("[platform]\nuser_namespace = 0\n", "never the host's"),
        ("[platform]\nuser_namespace = 60001\n", "owners.a.uid"),
    ] {
        let error = Config::parse(&format!("{GOOD}{more}")).unwrap_err().to_string();
        assert!(error.contains(said), "{more}: {error}");
    }
    let nobody = GOOD.replace("owner = \"a\"", "owner = \"z\"");
    assert!(Config::parse(&nobody).unwrap_err().to_string().contains("functions.f.owner"));
}

#[test]
fn a_runtime_has_the_names_that_it_has_at_aws_and_makes_ready_what_it_hands_over() {
    for (runtime, kind, sessions, forks) in [
        ("python", RuntimeKind::Python, 4, true),
        ("program", RuntimeKind::Program, 0, false),
        ("provided", RuntimeKind::Provided, 0, false),
        ("provided.al2023", RuntimeKind::Provided, 0, false),
    ] {
        let text = format!("{GOOD}runtime = \"{runtime}\"\ndestinations = [\"10.0.0.2\"]\n");
        let function = &Config::parse(&text).unwrap().functions["f"];
        assert_eq!((function.runtime, function.runtime.forks()), (kind, forks));
        assert_eq!((function.sessions(), function.unassigned_qps() > 0), (sessions, forks));
    }
}

/// It was connected to twice, and leased twice.
#[test]
fn a_destination_is_one_in_whichever_spelling() {
    let line =
        "destinations = [\"10.0.0.1\", \"::ffff:10.0.0.1\", \"FE80::0001\", \"::FFFF:a00:1\"]";
    let config = Config::parse(&format!("{GOOD}{line}\n")).unwrap();
    let named = config.functions["f"].destinations.iter().map(Gid::to_string);
    assert_eq!(named.collect::<Vec<_>>(), ["10.0.0.1", "fe80::1"]);
}

#[test]
fn connections_are_shared_unless_they_are_leased() {
    let read = |more: &str| Config::parse(&format!("{GOOD}{more}")).unwrap();
    assert_eq!(read("").functions["f"].connections, Connections::Shared);
    for connections in [Connections::Shared, Connections::Leased] {
        let line = format!("connections = \"{}\"\n", connections.name());
        assert_eq!(read(&line).functions["f"].connections, connections);
    }
}

#[test]
fn what_makes_an_order_too_long_is_refused() {
    let least: String = (0..=DESTINATIONS_MAX).map(|i| format!("\"10.0.1.{i}\",")).collect();
    let large = "x".repeat(ENVIRONMENT_MAX);
    for (more, said) in [
        (format!("destinations = [{least}]\n"), "destinations has 65"),
        (format!("environment = {{ A = \"{large}\" }}\n"), "environment has 65539"),
        ("[platform]\nprocesses_max = 65\n".into(), "platform.processes_max"),
    ] {
        let error = Config::parse(&format!("{GOOD}{more}")).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}
