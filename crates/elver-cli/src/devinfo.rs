//! `elver devinfo`: a device as ibv_devinfo shows it.

use std::net::IpAddr;

use clap::Args;
use elver_console::{Failure, plain, say};
use elver_perf::link::LinkArgs;
use elver_soft::{SoftConfig, SoftDevice, published};
use elver_verbs::{AtomicCap, Device, DeviceAttr, Gid, Mtu, PortAttr, PortState};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  elver devinfo -v
      what the software device can do
  elver devinfo --counters --json
      the counters of the devices that run now, as JSON";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevinfoArgs {
    /// Address of the device.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Show every capability.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Show the counters of the devices that are open in any process of this user.
    #[arg(long)]
    pub(crate) counters: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows what was asked for.
pub(crate) fn run(args: &DevinfoArgs) -> Result<(), Failure> {
    if args.counters {
        show_counters(args.json);
        return Ok(());
    }
    let mut config = match args.link.open()? {
        Some(link) => SoftConfig::for_frames(link),
        None => {
            let mut config = SoftConfig::for_address(args.address);
            // Any port will do: the device is only looked at, and another may be running on this
            // address.
            config.rnic.udp_port = spare_port(args)?;
            config
        }
    };
    config.publish = false;
    let device = SoftDevice::open(config)?;
    let (attr, port) = (device.query_device(), device.query_port());
    let gid = device.query_gid(0)?;
    if args.json {
        say!(
            "{}",
            serde_json::to_string_pretty(&as_json(&attr, &port, &gid.in_groups().to_string()))?
        );
        return Ok(());
    }
    print(&attr, &port);
    if args.verbose {
        print_limits(&attr);
        say!("\t\t\tsegmentation:\t\t{}", if device.segments() { "kernel" } else { "none" });
        for (index, ip) in device.config().addresses.iter().enumerate() {
            say!("\t\t\tGID[{index:3}]:\t\t{}, RoCE v2", Gid::from(*ip).in_groups());
        }
    }
    Ok(())
}

fn spare_port(args: &DevinfoArgs) -> Result<u16, Failure> {
    let socket = std::net::UdpSocket::bind((args.address, 0)).map_err(|error| {
        let address = args.address;
        anyhow::anyhow!("cannot open a device on {address}: {error}; `ip address` lists yours")
    })?;
    Ok(socket.local_addr()?.port())
}

fn show_counters(json: bool) {
    let devices = published();
    if json {
        let all: Vec<Value> = devices
            .iter()
            .map(|device| {
                let counters: serde_json::Map<String, Value> = device
                    .counters
                    .iter()
                    .map(|(name, value)| (name.clone(), json!(value)))
                    .collect();
                json!({
                    "pid": device.pid,
                    "device": device.name,
                    "address": device.address,
                    "counters": counters,
                })
            })
            .collect();
        say!("{}", Value::Array(all));
        return;
    }
    if devices.is_empty() {
        say!("no device is open in a process of this user");
    }
    for device in devices {
        let (name, address) = (plain(&device.name), plain(&device.address));
        match device.pid {
            0 => say!("{name} on {address} in a process of another PID namespace"),
            pid => say!("{name} on {address} in process {pid}"),
        }
        for (name, value) in &device.counters {
            say!("\t{:<24}{value:>16}", plain(name));
        }
    }
}

fn mtu(mtu: Mtu) -> String {
    format!("{} ({})", mtu.bytes(), mtu.code())
}

fn guid(guid: u64) -> String {
    let [a, b, c, d] = [guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff, guid & 0xffff];
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "PORT_DOWN (1)",
        PortState::Active => "PORT_ACTIVE (4)",
    }
}

fn transports(attr: &DeviceAttr) -> String {
    let caps = attr.transports;
    let names =
        [("RC", caps.rc), ("UC", caps.uc), ("UD", caps.ud), ("DC", caps.dc), ("XRC", caps.xrc)];
    let known: Vec<&str> =
        names.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    known.join(" ")
}

fn print(attr: &DeviceAttr, port: &PortAttr) {
    say!("hca_id:\t{}", attr.name);
    say!("\ttransport:\t\t\tInfiniBand (0)");
    say!("\tfw_ver:\t\t\t\t{}", attr.fw_ver);
    say!("\tnode_guid:\t\t\t{}", guid(attr.node_guid));
    say!("\tsys_image_guid:\t\t\t{}", guid(attr.node_guid));
    say!("\tvendor_id:\t\t\t0x0000");
    say!("\tvendor_part_id:\t\t\t0");
    say!("\thw_ver:\t\t\t\t0x0");
    say!("\tqp_types:\t\t\t{}", transports(attr));
    say!("\tphys_port_cnt:\t\t\t{}", attr.phys_port_cnt);
    say!("\t\tport:\t1");
    say!("\t\t\tstate:\t\t\t{}", state(port.state));
    say!("\t\t\tmax_mtu:\t\t{}", mtu(port.max_mtu));
    say!("\t\t\tactive_mtu:\t\t{}", mtu(port.active_mtu));
    say!("\t\t\tsm_lid:\t\t\t0");
    say!("\t\t\tport_lid:\t\t0");
    say!("\t\t\tport_lmc:\t\t0x00");
    say!("\t\t\tlink_layer:\t\tEthernet");
}

fn limits(attr: &DeviceAttr) -> [(&'static str, u64); 22] {
    [
        ("max_mr_size", attr.max_mr_size),
        ("max_qp", attr.max_qp.into()),
        ("max_qp_wr", attr.max_qp_wr.into()),
        ("max_sge", attr.max_sge.into()),
        ("max_inline_data", attr.max_inline_data.into()),
        ("max_cq", attr.max_cq.into()),
        ("max_cqe", attr.max_cqe.into()),
        ("max_mr", attr.max_mr.into()),
        ("max_pd", attr.max_pd.into()),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into()),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom.into()),
        ("max_mw", attr.max_mw.into()),
        ("max_ah", attr.max_ah.into()),
        ("max_srq", attr.max_srq.into()),
        ("max_srq_wr", attr.max_srq_wr.into()),
        ("max_srq_sge", attr.max_srq_sge.into()),
        ("max_dci_streams", attr.max_dci_streams.into()),
        ("max_dci_errored_streams", attr.max_dci_errored_streams.into()),
        ("max_dc_contexts", attr.max_dc_contexts.into()),
        ("local_ca_ack_delay", attr.local_ca_ack_delay.into()),
        ("max_pkeys", 1),
        ("phys_port_cnt", attr.phys_port_cnt.into()),
    ]
}

fn atomics(cap: AtomicCap) -> &'static str {
    match cap {
        AtomicCap::None => "ATOMIC_NONE (0)",
        AtomicCap::Hca => "ATOMIC_HCA (1)",
        AtomicCap::Glob => "ATOMIC_GLOB (2)",
    }
}

fn print_limits(attr: &DeviceAttr) {
    say!("\tatomic_cap:\t\t\t{}", atomics(attr.atomic_cap));
    for (name, value) in limits(attr) {
        say!("\t{:<31} {value}", format!("{name}:"));
    }
}

fn as_json(attr: &DeviceAttr, port: &PortAttr, gid: &str) -> Value {
    let mut all = json!({
        "hca_id": attr.name,
        "transport": "InfiniBand",
        "fw_ver": attr.fw_ver,
        "node_guid": guid(attr.node_guid),
        "sys_image_guid": guid(attr.node_guid),
        "qp_types": transports(attr),
        "atomic_cap": atomics(attr.atomic_cap),
        "ports": [{
            "port": 1,
            "state": state(port.state),
            "max_mtu": port.max_mtu.bytes(),
            "active_mtu": port.active_mtu.bytes(),
            "link_layer": "Ethernet",
            "gids": [gid],
        }],
    });
    for (name, value) in limits(attr) {
        all[name] = json!(value);
    }
    all
}
