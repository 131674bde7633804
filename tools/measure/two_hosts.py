"""Two machines on one, for tools/check_cluster: network namespaces with host names of their own, joined by a cable, and Open MPI
between them. As root."""
import ipaddress
import os
import pathlib
import shutil
import subprocess

NETWORK = ipaddress.ip_network("10.77.0.0/24")
HOSTS = ("hosta", "hostb")
CABLE = "cable"  # what a host's end of it is called

AGENT = """#!/bin/sh
# Open MPI's ssh: HOST COMMAND...
host=$1
shift
exec ip netns exec {prefix}$host unshare --uts sh -c "hostname $host; $*"
"""


def missing():
    """What this machine lacks to play two, in words; empty where it can."""
    tools = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mpirun": "openmpi-bin"}
    lacks = [f"{tool} (apt-get install {package})" for tool, package in tools.items() if shutil.which(tool) is None]
    if shutil.which("mpirun") and "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        lacks.append("Open MPI's mpirun: the one found is of another MPI")
    if os.geteuid() != 0:
        lacks.append("root, to make network namespaces")
    return lacks


def quietly(*words):
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def ip(*words):
    """Throws subprocess.CalledProcessError, with what ip says in stderr."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class TwoHosts:
    """A context: whatever happens, the namespaces and the processes in them are gone behind it."""

    def __init__(self, folder):
        self.prefix = f"lockstep-{os.getpid()}-"
        self.agent = pathlib.Path(folder) / "agent"
        self.etc = [pathlib.Path("/etc/netns") / self.namespace(host) for host in HOSTS]

    def namespace(self, host):
        return self.prefix + host

    def inside(self, host, *words):
        return ["ip", "netns", "exec", self.namespace(host), *words]

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        self.agent.write_text(AGENT.format(prefix=self.prefix))
        self.agent.chmod(0o755)
        addresses = [str(NETWORK[i + 1]) for i in range(len(HOSTS))]
        names = "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for address, host in zip(addresses, HOSTS))
        for folder in self.etc:
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(names)
        for host in HOSTS:
            ip("netns", "add", self.namespace(host))
        a, b = (self.namespace(host) for host in HOSTS)
        ip("link", "add", CABLE, "netns", a, "type", "veth", "peer", "name", CABLE, "netns", b)
        for host, address in zip(HOSTS, addresses):
            name = self.namespace(host)
            ip("-n", name, "address", "add", f"{address}/{NETWORK.prefixlen}", "dev", CABLE)
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")

    def remove(self):
        for host, folder in zip(HOSTS, self.etc):
            for pid in self.processes(host):
                quietly("kill", "-KILL", str(pid))
            quietly("ip", "netns", "delete", self.namespace(host))
            shutil.rmtree(folder, ignore_errors=True)
        quietly("rmdir", str(self.etc[0].parent))  # stays where it holds others

    def processes(self, host, program=None):
        """Of a host, or those of them that run `program`."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace(host)], capture_output=True, text=True).stdout
        return [int(pid) for pid in listed.split() if program is None or runs(int(pid), program)]

    def set_cable(self, state):
        ip("-n", self.namespace(HOSTS[1]), "link", "set", CABLE, state)

    def limit(self, rate):
        """What the cable carries each way, as tc writes it; None: as much as it can."""
        for host in HOSTS:
            quietly(*self.inside(host, "tc", "qdisc", "delete", "dev", CABLE, "root"))
            if rate is not None:
                words = self.inside(host, "tc", "qdisc", "add", "dev", CABLE, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
                subprocess.run(words, check=True, capture_output=True, text=True)

    def mpirun(self, per_host, program, transport="self,tcp", keep=()):
        """The command for per_host[i] processes on host i; transport is Open MPI's btl. keep: environment variables to hand on."""
        hosts = ",".join(f"{host}:{count}" for host, count in zip(HOSTS, per_host) if count > 0)
        settings = {"plm": "rsh", "plm_rsh_agent": self.agent, "btl": transport, "oob_tcp_if_include": NETWORK}
        if "tcp" in transport:
            settings["btl_tcp_if_include"] = NETWORK
        words = ["mpirun", "--host", hosts, "-np", sum(per_host), "--bind-to", "none"]
        for key, value in settings.items():
            words += ["--mca", key, value]
        for name in keep:
            words += ["-x", name]
        script = f'hostname {HOSTS[0]}; exec "$@"'
        return self.inside(HOSTS[0], "unshare", "--uts", "sh", "-c", script, "sh", *map(str, words), *map(str, program))


def runs(pid, program):
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False
