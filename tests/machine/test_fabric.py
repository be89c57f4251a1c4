"""RDMA devices, the index of their addresses and the interface between nodes, from a copy of a machine's files."""

from __future__ import annotations

from pathlib import Path

from madlite.machine.host_facts import find_fabric

ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "storage0\t00000000\t0101010A\t0003\t0\t0\t200\t00000000\t0\t0\t0\n"
    "ens50f0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "ens50f0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
)
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:{:04x}"
LINK = "fe80:0000:0000:0000:0000:00ff:fe00:{:04x}"
ROUTED = "2001:0db8:0000:0000:0000:0000:0000:{:04x}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def device(
    root: Path,
    name: str,
    gids: tuple[tuple[str, str], ...] = (),
    *,
    layer: str = "Ethernet",
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    numa: str = "0",
) -> None:
    port = root / "sys/class/infiniband" / name / "ports/1"
    for file, text in (("state", state), ("rate", rate), ("link_layer", layer)):
        write(port / file, text)
    write(root / "sys/class/infiniband" / name / "device/numa_node", numa)
    (port / "gid_attrs/types").mkdir(parents=True)
    for index, (kind, gid) in enumerate(gids):
        write(port / f"gids/{index}", gid)
        if kind:  # of an empty address the kernel refuses to read it
            write(port / f"gid_attrs/types/{index}", kind)


def test_a_machine_without_any_has_none(tmp_path: Path):
    found = find_fabric(tmp_path)
    assert found.ports == () and found.variables == {} and "no active RDMA device" in found.text


def test_ports_of_the_highest_speed_are_used_in_the_order_of_their_numbers(tmp_path: Path):
    own = (("IB/RoCE v1", LINK.format(1)), ("RoCE v2", LINK.format(1)), ("IB/RoCE v1", MAPPED.format(1)))
    for number in (0, 2, 10):
        device(tmp_path, f"mlx5_{number}", (*own, ("RoCE v2", MAPPED.format(number))), numa=str(number // 10))
    device(tmp_path, "mlx5_3", own, rate="100 Gb/sec (4X EDR)")
    device(tmp_path, "mlx5_4", own, state="1: DOWN")
    write(tmp_path / "proc/net/route", ROUTES)
    found = find_fabric(tmp_path)
    assert found.variables == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_2:1,mlx5_10:1",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_SOCKET_IFNAME": "=ens50f0",  # of two default routes the one with the lower metric
        "GLOO_SOCKET_IFNAME": "ens50f0",
    }
    assert "RoCE by mlx5_0:1" in found.text and "400 Gb/s" in found.text and "NUMA nodes 0, 1" in found.text
    assert "not by mlx5_3:1" in found.text


def test_an_address_of_ip_version_6_is_better_than_one_of_the_link(tmp_path: Path):
    gids = (("RoCE v2", LINK.format(1)), ("", ""), ("RoCE v2", ROUTED.format(7)))
    device(tmp_path, "bnxt_re0", gids)
    assert find_fabric(tmp_path).gid_index == 2


def test_no_index_is_set_where_devices_have_different_ones(tmp_path: Path):
    device(tmp_path, "bnxt_re0", (("RoCE v2", MAPPED.format(1)),))
    device(tmp_path, "bnxt_re1", (("IB/RoCE v1", MAPPED.format(2)), ("RoCE v2", MAPPED.format(2))))
    found = find_fabric(tmp_path)
    assert "NCCL_IB_GID_INDEX" not in found.variables and len(found.ports) == 2


def test_infiniband_needs_no_index(tmp_path: Path):
    device(tmp_path, "mlx5_0", (("IB/RoCE v1", LINK.format(1)),), layer="InfiniBand")
    found = find_fabric(tmp_path)
    assert found.variables == {"NCCL_IB_HCA": "=mlx5_0:1"} and "InfiniBand" in found.text


def test_the_default_route_may_be_one_of_ipv6(tmp_path: Path):
    nothing, hop = "0" * 32, "fd" + "0" * 29 + "1"
    rest = "00000003 00000000 00000003"
    lines = [f"{nothing} 00 {nothing} 00 {nothing} ffffffff {rest} lo"]
    lines += [
        f"{nothing} 00 {nothing} 00 {hop} {metric} {rest} {name}" for metric, name in (("400", "ib0"), ("64", "eth1"))
    ]
    lines += [f"fd{nothing[2:]} 40 {nothing} 00 {nothing} 00000001 {rest} eth2"]
    write(tmp_path / "proc/net/ipv6_route", "\n".join(lines))
    assert find_fabric(tmp_path).interface == "eth1"


def test_without_a_route_the_only_interface_that_is_up_is_the_network(tmp_path: Path):
    for name, state in (("lo", "unknown"), ("docker0", "up"), ("veth1a2b", "up"), ("eno1", "up"), ("eno2", "down")):
        write(tmp_path / f"sys/class/net/{name}/operstate", state)
    assert find_fabric(tmp_path).interface == "eno1"
    write(tmp_path / "sys/class/net/eno2/operstate", "up")
    assert find_fabric(tmp_path).interface == ""  # either may be
