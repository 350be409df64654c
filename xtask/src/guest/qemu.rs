//! Boots guests and talks with their consoles.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal as _, PipeReader, Read, Write},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::{
    io::FdFlags,
    process::{Pid, Signal, kill_process, set_parent_process_death_signal},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    console::Console,
    image::{Contents, Processors},
    init, terminal,
};
use crate::{arch::Arch, paths};

/// Two cards on one wire inside QEMU, with nothing else on it: neither this machine nor what lies beyond.
const CARDS: [&str; 8] = [
    "-netdev",
    "hubport,id=near,hubid=0",
    "-netdev",
    "hubport,id=far,hubid=0",
    "-device",
    "virtio-net-pci,netdev=near,romfile=",
    "-device",
    "virtio-net-pci,netdev=far,romfile=",
];
const PROCESSORS: &str = "2";
/// The memory of a guest that needs no more.
pub(crate) const MEBIBYTES: u32 = 1024;
/// The accelerator for guests, in QEMU's words, if the default is not right.
const ACCELERATOR: &str = "NET_LATENCY_ACCEL";
const KVM: &str = "kvm";
/// A guest that sleeps does so for about this time.
const WAKING: Duration = Duration::from_millis(500);
/// How long a guest may take to boot by KVM. It takes 3 s by emulation, which is the better way where KVM takes longer.
const TRIAL: Duration = Duration::from_secs(10);
/// One host thread for both processors: with one each, a processor of the guest can run code that the other is
/// patching, and the kernel dies at boot (6.12 did, on the int3 of a static key in `sched_clock_cpu`).
/// Guests are tested two at a time, so that this costs nothing.
const EMULATION: &str = "tcg,thread=single";
/// One each, for what only happens at the same time. That is sound as long as nothing patches code under load: QEMU 7.2 may
/// execute a breakpoint that another processor has just patched away.
const PARALLEL_EMULATION: &str = "tcg,thread=multi";
/// What an architecture's guests are made of, besides what all have.
struct Board {
    /// Arguments for QEMU.
    machine: &'static [&'static str],
    /// The processor of guests whose instructions are counted.
    counted_cpu: &'static str,
    /// And of others.
    cpu: &'static str,
    /// What makes a second serial port of a character device, before its name.
    second_port: [&'static str; 2],
    /// For the kernel.
    append: &'static str,
}

/// With cmpxchg16b kernel 6.12 crashes in its allocator under emulation. For guests whose instructions are not counted: told that copying
/// by single bytes is fast (ERMS), which emulation does byte by byte, the kernel does so, above all in its verifier. Without, a guest takes
/// a quarter less time. And on a busy machine the emulated timer ticks too late for the kernel's check at boot ("IO-APIC + timer doesn't
/// work").
const PC: Board = Board {
    machine: &[],
    counted_cpu: "max,cx16=off",
    cpu: "max,cx16=off,erms=off,fsrm=off",
    second_port: ["-serial", "chardev:"],
    append: "no_timer_check",
};
/// The kernel signs return addresses, which the algorithm of real processors makes ten times slower under emulation.
const VIRT: Board = Board {
    machine: &["-M", "virt"],
    counted_cpu: "max,pauth-impdef=on",
    cpu: "max,pauth-impdef=on",
    second_port: ["-device", "pci-serial,chardev="],
    append: "",
};

impl Board {
    fn of(arch: Arch) -> &'static Self {
        match arch {
            Arch::X86_64 => &PC,
            Arch::Arm64 => &VIRT,
        }
    }
}

/// How long a guest may take to switch itself off once its command has ended.
const POWER_OFF: Duration = Duration::from_secs(15);

/// What Ctrl-C and Ctrl-D send.
const INTERRUPT: u8 = 0x03;
const END_OF_INPUT: u8 = 0x04;
/// Ctrl-]: ends the guest itself, should it hang.
const ESCAPE: u8 = 0x1d;

/// How a guest ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The command ended with this status.
    Exited(u8),
    /// The kernel panicked, the time was up, or QEMU failed: why, and the console's last lines.
    Died { reason: String, tail: String },
}

/// Boots a guest that has this process's terminal, or its standard streams.
pub(crate) fn attached(mut contents: Contents, limit: Option<Duration>) -> Result<Outcome> {
    let to_terminal = io::stdout().is_terminal();
    contents.environment.push(("TERM".into(), std::env::var_os("TERM").unwrap_or_else(|| "linux".into())));
    if let Some((rows, columns)) = terminal::size() {
        contents.environment.push(("LINES".into(), rows.to_string().into()));
        contents.environment.push(("COLUMNS".into(), columns.to_string().into()));
    }
    if !to_terminal {
        let [_, port] = contents.kernel.arch.ports();
        contents.environment.push((init::DATA_PORT.into(), port.into()));
    }
    let mut guest = Guest::boot(&contents, !to_terminal, limit)?;
    let raw = terminal::Raw::enter()?;
    if raw.is_some() {
        eprintln!("xtask: kernel {} starts in a guest; Ctrl-] ends the guest", contents.kernel);
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let keyboard = guest.keyboard.clone();
    let forwarder = thread::spawn(move || {
        for _ in signals.forever() {
            keyboard.press(INTERRUPT);
        }
    });
    // The command's data has a way of its own if it goes elsewhere than to the terminal.
    let data = guest.data.take().map(|mut data| {
        let keyboard = guest.keyboard.clone();
        thread::spawn(move || copy_data(&mut data, &keyboard))
    });
    let outcome = if to_terminal {
        guest.follow(&mut io::stdout(), true)
    } else {
        guest.follow(&mut WithoutReturns(io::stderr()), true)
    };
    if let Some(data) = data {
        data.join().expect("copying the output doesn't panic")?;
    }
    handle.close();
    forwarder.join().expect("forwarding signals doesn't panic");
    outcome
}

/// Boots a guest without input and collects its output.
pub(crate) fn captured(contents: &Contents, limit: Duration) -> Result<(Outcome, String)> {
    let mut output = Vec::new();
    let outcome =
        Guest::boot(contents, false, Some(limit))?.follow(&mut WithoutReturns(&mut output), false)?;
    Ok((outcome, String::from_utf8_lossy(&output).into_owned()))
}

/// By what a guest's processors run.
fn accelerator(contents: &Contents) -> String {
    if let Ok(chosen) = std::env::var(ACCELERATOR) {
        return chosen;
    }
    let accelerator = match contents.processors {
        Processors::Counted => EMULATION,
        Processors::Two | Processors::Parallel if kvm_works(contents) => KVM,
        Processors::Two => EMULATION,
        Processors::Parallel => PARALLEL_EMULATION,
    };
    accelerator.to_owned()
}

/// Whether a guest boots by KVM. A device alone says little: inside another virtual machine it may be there and of no use.
fn kvm_works(contents: &Contents) -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    if !contents.kernel.arch.is_here() {
        return false;
    }
    *WORKS.get_or_init(|| {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return false;
        }
        let trial = Contents {
            kernel: contents.kernel.clone(),
            init: contents.init.clone(),
            programs: Vec::new(),
            files: Vec::new(),
            command: vec!["true".into()],
            environment: Vec::new(),
            has_cards: false,
            processors: Processors::Two,
            mebibytes: MEBIBYTES,
        };
        // QEMU's own complaints would look like a failure of what comes after.
        let works = Guest::boot_by(KVM, Stdio::null(), &trial, false, Some(TRIAL))
            .and_then(|guest| guest.follow(&mut io::sink(), false))
            .is_ok_and(|outcome| outcome == Outcome::Exited(0));
        eprintln!(
            "xtask: {}",
            if works { "guests run by KVM" } else { "guests are emulated, since KVM boots none here" }
        );
        works
    })
}

struct Guest {
    qemu: Child,
    keyboard: Keyboard,
    data: Option<PipeReader>,
    watchdog: Watchdog,
    image: PathBuf,
}

impl Guest {
    fn boot(contents: &Contents, data_port: bool, limit: Option<Duration>) -> Result<Self> {
        Self::boot_by(&accelerator(contents), Stdio::inherit(), contents, data_port, limit)
    }

    fn boot_by(
        accelerator: &str,
        messages: Stdio,
        contents: &Contents,
        data_port: bool,
        limit: Option<Duration>,
    ) -> Result<Self> {
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(paths::guest())?;
        remove_stale_images()?;
        let number = BOOTED.fetch_add(1, Ordering::Relaxed);
        let image = paths::guest().join(format!("{}-{}-{number}.cpio", contents.kernel, std::process::id()));
        contents.write(BufWriter::new(File::create(&image)?)).context("can't write the guest's initramfs")?;

        let arch = contents.kernel.arch;
        let (qemu, _) = arch.machine();
        let board = Board::of(arch);
        let mut command = Command::new(qemu);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(board.machine);
        if contents.processors == Processors::Counted {
            command.args(["-accel", EMULATION, "-icount", "shift=0,sleep=off", "-smp", "1", "-cpu"]);
            command.arg(board.counted_cpu);
        } else {
            command.args(["-accel", accelerator, "-smp", PROCESSORS, "-cpu", board.cpu]);
        }
        command.args(["-m", &contents.mebibytes.to_string()]);
        command.arg("-kernel").arg(contents.kernel.image()).arg("-initrd").arg(&image);
        let [console, _] = arch.ports();
        let append = format!("console={console} panic=-1 mitigations=off {} quiet", board.append);
        command.args(["-append", &append]);
        command.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        if contents.has_cards {
            command.args(CARDS);
        }
        let (data, port) = if data_port {
            let (reader, writer) = io::pipe()?;
            let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
            let [option, port] = board.second_port;
            command.args(["-chardev", &format!("file,id=data,path={path}"), option, &format!("{port}data")]);
            (Some(reader), Some(OwnedFd::from(writer)))
        } else {
            (None, None)
        };
        let (monitor, waker) = if contents.processors == Processors::Counted {
            (None, None)
        } else {
            let (ours, theirs) = UnixStream::pair()?;
            command.args(["-chardev", &format!("socket,id=monitor,fd={}", theirs.as_raw_fd())]);
            command.args(["-mon", "chardev=monitor,mode=readline"]);
            (Some(OwnedFd::from(theirs)), Some(ours))
        };
        let parent = rustix::process::getpid();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages).process_group(0);
        // SAFETY: these are system calls alone; nothing is allocated and no lock is taken.
        unsafe {
            command.pre_exec(move || {
                for inherited in [&port, &monitor].into_iter().flatten() {
                    rustix::io::fcntl_setfd(inherited, FdFlags::empty())?;
                }
                set_parent_process_death_signal(Some(Signal::TERM))?;
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::Error::other("xtask is gone"));
                }
                Ok(())
            });
        }
        let mut qemu = command.spawn().with_context(|| format!("can't start {qemu}"))?;
        // The pipe's end that is QEMU's would keep the reader waiting for ever here, and so would the monitor's.
        drop(command);
        if let Some(monitor) = waker {
            monitor.set_read_timeout(Some(WAKING))?;
            thread::spawn(move || keep_awake(monitor));
        }
        let keyboard = Keyboard(Arc::new(Mutex::new(qemu.stdin.take().context("QEMU has no input")?)));
        let watchdog = Watchdog::start(Pid::from_child(&qemu), limit);
        Ok(Self { qemu, keyboard, data, watchdog, image })
    }

    /// Passes the command's output on until the guest is gone.
    fn follow(mut self, output: &mut dyn Write, with_input: bool) -> Result<Outcome> {
        let mut stdout = self.qemu.stdout.take().context("QEMU has no output")?;
        let mut console = Console::default();
        let mut buffer = [0; 4096];
        let mut open = true;
        loop {
            let length = stdout.read(&mut buffer).context("can't read the guest's console")?;
            if length == 0 {
                break;
            }
            let (started, ended) = (console.started(), console.ended());
            let bytes = console.feed(&buffer[..length]);
            if with_input && console.started() && !started {
                // Not earlier: input before the console is open gets lost.
                let (keyboard, watchdog) = (self.keyboard.clone(), self.watchdog.clone());
                thread::spawn(move || type_input(&keyboard, &watchdog));
            }
            if console.ended().is_some() && ended.is_none() {
                self.watchdog.shorten();
            }
            if open && !bytes.is_empty() {
                match output.write_all(&bytes).and_then(|()| output.flush()) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        open = false;
                        self.keyboard.press(INTERRUPT);
                    }
                    result => result.context("can't pass the guest's output on")?,
                }
            }
        }
        let status = self.qemu.wait()?;
        let fired = self.watchdog.stop();
        Ok(match console.ended() {
            Some(status) => Outcome::Exited(status),
            None => Outcome::Died {
                reason: fired
                    .unwrap_or_else(|| format!("the guest ended before its command (QEMU: {status})")),
                tail: console.tail(),
            },
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Ends QEMU where an error kept `follow` from seeing its end; both fail harmlessly otherwise.
        drop(self.qemu.kill());
        drop(self.qemu.wait());
        if let Err(error) = fs::remove_file(&self.image) {
            eprintln!("xtask: can't remove {}: {error}", self.image.display());
        }
    }
}

/// Wakes a guest that sleeps (suspend to RAM), again and again: one that is awake refuses. An alarm in the guest might go off
/// before it sleeps. Ends with QEMU.
fn keep_awake(mut monitor: UnixStream) {
    let mut answers = [0; 4096];
    while monitor.write_all(b"system_wakeup\n").is_ok() {
        // Silence for a while.
        loop {
            match monitor.read(&mut answers) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    break;
                }
                Err(_) => return,
            }
        }
    }
}

/// Removes images whose xtask was killed: they are named by its process.
fn remove_stale_images() -> Result<()> {
    for entry in fs::read_dir(paths::guest())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('-').nth(1).unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            match fs::remove_file(entry.path()) {
                // Another guest that starts now was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.with_context(|| format!("can't remove {}", entry.path().display()))?,
            }
        }
    }
    Ok(())
}

/// The console's input.
#[derive(Clone)]
struct Keyboard(Arc<Mutex<ChildStdin>>);

impl Keyboard {
    fn press(&self, key: u8) {
        self.write(&[key]);
    }

    /// Returns whether it still has a reader.
    fn write(&self, bytes: &[u8]) -> bool {
        let mut stdin = self.0.lock().expect("no holder of the lock panics");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).is_ok()
    }
}

/// Passes standard input to the guest until either ends.
fn type_input(keyboard: &Keyboard, watchdog: &Watchdog) {
    let mut buffer = [0; 1024];
    let mut stdin = io::stdin();
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) | Err(_) => {
                keyboard.press(END_OF_INPUT);
                return;
            }
            Ok(length) if buffer[..length].contains(&ESCAPE) => {
                watchdog.fire("ended by Ctrl-]");
                return;
            }
            Ok(length) if !keyboard.write(&buffer[..length]) => return,
            Ok(_) => {}
        }
    }
}

/// Passes the command's data on. If the reader has gone, the command is told as by a terminal.
fn copy_data(data: &mut PipeReader, keyboard: &Keyboard) -> Result<()> {
    match io::copy(data, &mut io::stdout()).and_then(|_| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            keyboard.press(INTERRUPT);
            // The guest must not wait for a reader while it ends.
            io::copy(data, &mut io::sink())?;
            Ok(())
        }
        result => result.map(|_| ()).context("can't write the guest's output"),
    }
}

/// Ends a guest that takes too long.
#[derive(Clone)]
struct Watchdog {
    orders: mpsc::Sender<Order>,
    verdict: Arc<Mutex<Option<String>>>,
}

enum Order {
    Limit(Duration),
    Fire(String),
    Stop,
}

impl Watchdog {
    fn start(qemu: Pid, limit: Option<Duration>) -> Self {
        let (orders, inbox) = mpsc::channel();
        let watchdog = Self { orders, verdict: Arc::new(Mutex::new(None)) };
        let verdict = Arc::clone(&watchdog.verdict);
        thread::spawn(move || {
            let mut limit = limit;
            let reason = loop {
                let order = match limit {
                    Some(limit) => inbox.recv_timeout(limit),
                    None => inbox.recv().map_err(RecvTimeoutError::from),
                };
                match order {
                    Ok(Order::Limit(shorter)) => limit = Some(shorter),
                    Ok(Order::Fire(reason)) => break reason,
                    Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        break format!("no end within {} s", limit.unwrap_or_default().as_secs());
                    }
                }
            };
            *verdict.lock().expect("no holder of the lock panics") = Some(reason);
            if let Err(error) = kill_process(qemu, Signal::KILL) {
                eprintln!("xtask: can't end the guest: {error}");
            }
        });
        watchdog
    }

    fn order(&self, order: Order) {
        // The thread is gone only if it has fired already.
        drop(self.orders.send(order));
    }

    fn shorten(&self) {
        self.order(Order::Limit(POWER_OFF));
    }

    fn fire(&self, reason: &str) {
        self.order(Order::Fire(reason.to_owned()));
    }

    /// Why the guest was ended, if it was.
    fn stop(&self) -> Option<String> {
        self.order(Order::Stop);
        self.verdict.lock().expect("no holder of the lock panics").take()
    }
}

/// Leaves out the carriage returns that a terminal puts before each newline.
struct WithoutReturns<W>(W);

impl<W: Write> Write for WithoutReturns<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let kept: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\r').collect();
        self.0.write_all(&kept)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What every guest has: the tool, and variables that tell tests where they are.
pub(crate) fn contents(
    kernel: crate::setup::kernels::Kernel,
    built: &crate::build::Built,
    command: Vec<OsString>,
) -> Contents {
    Contents {
        kernel,
        init: built.xtask.clone(),
        programs: vec![("net-latency".into(), built.tool.clone())],
        command,
        environment: vec![
            ("NET_LATENCY".into(), "/bin/net-latency".into()),
            ("NET_LATENCY_GUEST".into(), "1".into()),
        ],
        has_cards: false,
        processors: Processors::Two,
        files: Vec::new(),
        mebibytes: MEBIBYTES,
    }
}
