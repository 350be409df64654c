//! The tool's own image, read and run by third-party programs as the manifests for Kubernetes say.

use std::{
    fs,
    net::SocketAddr,
    path::{Path as FilePath, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    Case,
    export::{in_histograms, scrape},
};
use crate::{
    confine::KprobesPermitted,
    footer::Footer,
    net::{Path, Version},
    peers::{CLIENT, Pair, SERVER},
    process::{Lines, PATIENCE, until, wait},
    tool::Backend,
    verdict::Skipped,
};

pub(crate) const CASES: &[Case] =
    &[("export_in_a_container", counts), ("export_in_a_container_where_calls_are_refused", refused)];

/// All system calls that the exporter makes, from its start to its end. Docker's default profile (moby/profiles, seccomp/default.json)
/// allows each of them, `bpf` with CAP_BPF and `perf_event_open` with CAP_PERFMON.
const CALLS: &[&str] = &[
    // To begin.
    "arch_prctl",
    "bind",
    "capget",
    "capset",
    "epoll_create1",
    "eventfd2",
    "execve",
    "landlock_add_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "listen",
    "perf_event_open",
    "pipe2",
    "pread64",
    "prlimit64",
    "seccomp",
    "set_tid_address",
    "socketpair",
    "uname",
    // From then on.
    "accept4",
    "bpf",
    "brk",
    "clock_gettime",
    "clock_nanosleep",
    "clone",
    "close",
    "dup",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "exit",
    "exit_group",
    "fcntl",
    "fstat",
    "fstatfs",
    "futex",
    "getcwd",
    "getdents64",
    "geteuid",
    "getpeername",
    "getpid",
    "getrandom",
    "getsockname",
    "getsockopt",
    "gettid",
    "gettimeofday",
    "ioctl",
    "lseek",
    "lstat",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "nanosleep",
    "newfstatat",
    "open",
    "openat",
    "poll",
    "ppoll",
    "prctl",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "recvfrom",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_yield",
    "sendto",
    "set_robust_list",
    "setpriority",
    "setsockopt",
    "shutdown",
    "sigaltstack",
    "socket",
    "stat",
    "statx",
    "tgkill",
    "write",
    "writev",
];

/// Where a guest that was to carry them has them.
const IMAGE: &str = "/root/net-latency.oci.tar";
const UMOCI: &str = "/bin/umoci";
const CRUN: &str = "/bin/crun";
const DAEMON_SET: &str = include_str!("../../../../contrib/kubernetes/daemonset.yaml");
const NAME: &str = "net-latency";
const ROUNDS: u32 = 100;
const LEN: u32 = 200;

/// What a container of the DaemonSet gets.
struct Manifest {
    container: Value,
    volumes: Vec<Value>,
}

impl Manifest {
    fn read() -> Result<Self> {
        let whole: Value = yaml_serde::from_str(DAEMON_SET)?;
        let pod = &whole["spec"]["template"]["spec"];
        let container = pod["containers"][0].clone();
        Ok(Self { container, volumes: pod["volumes"].as_array().context("no volumes")?.clone() })
    }

    fn args(&self) -> Result<Vec<String>> {
        Ok(serde_json::from_value(self.container["args"].clone())?)
    }

    /// As a runtime has them.
    fn capabilities(&self) -> Result<Vec<String>> {
        let capabilities = &self.container["securityContext"]["capabilities"];
        ensure!(capabilities["drop"] == json!(["ALL"]), "not all are dropped: {capabilities}");
        let added: Vec<String> = serde_json::from_value(capabilities["add"].clone())?;
        Ok(added.into_iter().map(|name| format!("CAP_{name}")).collect())
    }

    /// Host's and container's path of each volume.
    fn mounts(&self) -> Result<Vec<(String, String)>> {
        let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("{value}"));
        let mounts = self.container["volumeMounts"].as_array().context("no mounts")?;
        mounts
            .iter()
            .map(|mount| {
                ensure!(mount["readOnly"] == true, "it may write: {mount}");
                let volume = self.volumes.iter().find(|volume| volume["name"] == mount["name"]);
                let volume = volume.with_context(|| format!("no volume: {mount}"))?;
                Ok((text(&volume["hostPath"]["path"])?, text(&mount["mountPath"])?))
            })
            .collect()
    }
}

/// An image that was unpacked. Its directory goes with it.
struct Bundle(PathBuf);

impl Bundle {
    fn unpack() -> Result<Self> {
        let bundle = Self(std::env::temp_dir().join("container"));
        let layout = bundle.0.join("layout");
        fs::create_dir_all(&layout)?;
        run(Command::new("tar").args(["-x", "-f", IMAGE, "-C"]).arg(&layout))?;
        let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
        run(Command::new(UMOCI).args(["unpack", "--image", &image]).arg(bundle.path()))?;
        Ok(bundle)
    }

    fn path(&self) -> PathBuf {
        self.0.join("bundle")
    }

    /// Makes of what the image asks for what Kubernetes makes of it; the network is that of this process.
    fn configure(
        &self,
        manifest: &Manifest,
        more: &[&str],
        namespaces_of: u32,
        calls: &[&str],
    ) -> Result<()> {
        let path = self.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
        let process = &mut config["process"];
        ensure!(process["args"] == json!(["/net-latency"]), "it starts {}", process["args"]);
        ensure!(
            process["user"]["uid"] == 0 && process["user"]["gid"] == 0,
            "its user is {}",
            process["user"]
        );
        let args = manifest.args()?;
        let args =
            ["/net-latency"].into_iter().chain(args.iter().map(String::as_str)).chain(more.iter().copied());
        process["args"] = args.collect();
        process["terminal"] = json!(false);
        process["noNewPrivileges"] = json!(true);
        let capabilities = json!(manifest.capabilities()?);
        process["capabilities"] =
            json!({ "bounding": capabilities, "effective": capabilities, "permitted": capabilities });
        config["root"]["readonly"] = json!(true);
        // As Docker's: unlisted calls are not permitted, and clone3 does not exist, so that clone is called.
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": libc::EPERM,
            "architectures": [crate::arch::SECCOMP],
            "syscalls": [
                { "names": calls, "action": "SCMP_ACT_ALLOW" },
                { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS },
            ],
        });
        let mounts = config["mounts"].as_array_mut().context("no mounts")?;
        mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
        for (host, inside) in manifest.mounts()? {
            fs::create_dir_all(&host)?;
            mounts.push(json!({
                "destination": inside, "source": host, "type": "bind", "options": ["rbind", "ro"],
            }));
        }
        let namespaces = config["linux"]["namespaces"].as_array_mut().context("no namespaces")?;
        let network = namespaces.iter_mut().find(|namespace| namespace["type"] == "network");
        network.context("no network of its own")?["path"] = json!(format!("/proc/{namespaces_of}/ns/net"));
        Ok(fs::write(&path, serde_json::to_vec(&config)?)?)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Runs a program to its end, which must be a good one.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
    Ok(())
}

/// A container that runs.
struct Container {
    runtime: Child,
    stderr: Lines,
    said: Vec<String>,
}

impl Container {
    /// Runs it, and returns once the tool says that it traces.
    fn start(bundle: &Bundle) -> Result<Self> {
        let mut command = Command::new(CRUN);
        // A guest's root is its initramfs, which can't be pivoted away from.
        command.args(["run", "--no-pivot", "--bundle"]).arg(bundle.path()).arg(NAME);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut runtime = command.spawn()?;
        let stderr = Lines::follow(runtime.stderr.take().context("stderr is a pipe")?);
        let mut container = Self { runtime, stderr, said: Vec::new() };
        while let Some(line) = container.stderr.next(PATIENCE).context("waiting until the tool traces")? {
            let is_ready = line.starts_with("net-latency: tracing by ");
            container.said.push(line);
            if is_ready {
                return Ok(container);
            }
        }
        bail!("it ended before it traced:\n{}", container.said.join("\n"))
    }

    /// Ends it as Kubernetes does; what it said last.
    fn stop(mut self) -> Result<Footer> {
        run(Command::new(CRUN).args(["kill", NAME, "TERM"]))?;
        let status = wait(&mut self.runtime, PATIENCE)?;
        self.said.extend(self.stderr.rest()?);
        let said = self.said.join("\n");
        ensure!(status.success(), "{status}: {said}");
        let footer = self.said.iter().rev().find_map(|line| Footer::parse(line).transpose());
        footer.with_context(|| format!("no footer: {said}"))?
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Fails when it has ended, which is the normal case.
        drop(run(Command::new(CRUN).args(["delete", "--force", NAME])));
        drop(self.runtime.wait());
    }
}

/// That this guest has what it takes: only guests that were to carry it do.
fn expect_possible() -> Result<()> {
    let is_there = [IMAGE, UMOCI, CRUN].iter().all(|path| FilePath::new(path).exists());
    ensure!(is_there, Skipped("this guest has no image, or nothing that runs it"));
    Ok(())
}

/// Where a call is refused without which nothing can be traced, one sentence says so.
fn refused(_: Backend) -> Result<()> {
    expect_possible()?;
    let manifest = Manifest::read()?;
    let bundle = Bundle::unpack()?;
    let calls: Vec<_> = CALLS.iter().copied().filter(|call| *call != "bpf").collect();
    bundle.configure(&manifest, &[], std::process::id(), &calls)?;
    let mut command = Command::new(CRUN);
    command.args(["run", "--no-pivot", "--bundle"]).arg(bundle.path()).arg(NAME);
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8(output.stderr)?;
    let words = ["Operation not permitted", "a seccomp filter"];
    let is_right = output.status.code() == Some(3)
        && said.lines().count() == 1
        && words.iter().all(|words| said.matches(words).count() == 1);
    ensure!(is_right, "{}: {said}", output.status);
    Ok(())
}

/// Other people's programs read the image and run it with what the DaemonSet gives it, and no more, under a seccomp filter: it counts the conversation of
/// processes outside, and ends well.
fn counts(backend: Backend) -> Result<()> {
    expect_possible()?;
    let _permitted = (backend == Backend::Kprobe).then(KprobesPermitted::new).transpose()?;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let manifest = Manifest::read()?;
    let bundle = Bundle::unpack()?;
    let port = pair.far.port().to_string();
    bundle.configure(&manifest, &["--port", &port, "--footer", "json"], pair.server.pid(), CALLS)?;
    let container = Container::start(&bundle)?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let address = SocketAddr::new(pair.far.ip(), 9823);
    let all = u64::from(4 * ROUNDS);
    // A process in no pod counts as the host's, which takes its time.
    let of_host = || -> Result<u64> {
        let samples = path.near(|| scrape(address))?;
        Ok(in_histograms(&samples, &[("namespace", "host"), ("pod", "host"), ("container", "host")]))
    };
    until(PATIENCE, || Ok(of_host()? >= all)).context("not all packets are counted")?;
    let counted = of_host()?;
    let ledger = container.stop()?.ledger()?;
    ensure!(counted == all && ledger.shown == all, "{counted} packets, not {all}: {ledger:?}");
    Ok(())
}
