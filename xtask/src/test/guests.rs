//! The tests that need a kernel of their own.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fmt, fs,
    io::{self, Write as _},
    path::PathBuf,
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use super::{phase, summary::Summary};
use crate::{
    arch::Arch,
    bench,
    build::Built,
    cli::TestArgs,
    dist,
    guest::{
        image::Processors,
        qemu::{Outcome, captured, contents},
    },
    paths,
    setup::{
        Needs,
        kernels::{Kernel, Series},
        programs,
    },
};

/// Guests beyond one per processor: more than half of a guest's time goes into sleeps and the kernel's grace periods. Two more take each
/// as much longer, so that nothing is gained, and tests fail that depend on time.
const GUESTS_BEYOND: usize = 2;
/// Ends a guest that hangs. The tests take a few minutes under emulation, those on PREEMPT_RT three times as long.
const GUEST_LIMIT: Duration = Duration::from_secs(4500);
const TEST_PROGRAM: &str = "guest-tests";
/// Seconds of random traffic with `--soak`, once per backend, and what that adds to the limit: a while for checking
/// what came is included.
const SOAK: (&str, &str) = ("NET_LATENCY_SOAK_SECONDS", "600");
const SOAK_LIMIT: Duration = Duration::from_secs(3600);
/// The random traffic is the same each time, unless new seeds are to be tried; the test prints its seed.
const SOAK_SEED: (&str, &str) = ("NET_LATENCY_SOAK_SEED", "20260302");
/// Asks for the tests of what happens when two processors run the kernel side at the same time, by all backends.
const RACE: (&str, &str) = ("NET_LATENCY_RACE", "1");
/// In all of their names.
const RACE_FILTER: &str = "::race";
/// Asks for the daily run's choice of tests on each kernel (`cases/daily.rs` of the guest's tests).
const DAILY: (&str, &str) = ("NET_LATENCY_DAILY", "1");
/// Asks for a [`Share`] of the tests.
const SHARE: &str = "NET_LATENCY_TESTS";
/// Asks for one of several pieces of these, such as `2/2`.
const PIECE: &str = "NET_LATENCY_PIECE";
/// Into how many pieces a share is cut, each with a guest of its own: no guest is still at work long after the others have ended.
const PIECES: u8 = 2;
/// Says that a guest that sleeps is woken.
const WOKEN: (&str, &str) = ("NET_LATENCY_WOKEN", "1");
/// How often each test runs.
const REPEAT: &str = "NET_LATENCY_REPEAT";
/// The kernel on which kprobes are tested by all there is, whatever else is wanted: the oldest has the strictest verifier.
const OF_KPROBES: Series = Series::Version(5, 10);
/// In the names of the tests of journeys. On the real-time kernel each takes most of a minute, attaching and detaching, and the default
/// backend takes kprobes there.
const JOURNEYS: &str = "kprobe::journey";
/// In the names of the tests that make faults and judge the verdict on them. Each takes several seconds, so that they run on a usual
/// kernel and on the newest only, unless kernels are named.
const INCIDENTS: &str = "diagnose_";
/// Tells the tests that the guest has network cards.
const CARDS: (&str, &str) = ("NET_LATENCY_CARDS", "1");

/// A part of what a kernel is tested with. There are several so that the slowest kernel doesn't set the time of the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// By fentry, or on kernels that preempt tasks by the default backend; also what knows no backend.
    Fentry,
    /// By kprobe.
    Kprobe,
    /// What happens with processors that run at the same time, by both.
    Race,
}

impl Part {
    const ALL: [Self; 3] = [Self::Fentry, Self::Kprobe, Self::Race];

    /// The beginnings of names of tests that are not in this part.
    fn skipped(self) -> &'static [&'static str] {
        match self {
            Self::Fentry => &["kprobe::"],
            Self::Kprobe => &["fentry::", "auto::", "harness::", "last::"],
            Self::Race => &["harness::", "last::"],
        }
    }

    fn processors(self) -> Processors {
        match self {
            Self::Fentry | Self::Kprobe => Processors::Two,
            Self::Race => Processors::Parallel,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fentry => "fentry or auto",
            Self::Kprobe => "kprobe",
            Self::Race => "race",
        })
    }
}

/// Which tests of a part a guest runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// All but those of [`Self::Times`].
    All,
    /// Those that depend on how functions are hooked.
    Hooks,
    /// Those of what comes behind the hooks, which knows no kernel.
    BehindHooks,
    /// Those of the user side alone.
    UserSide,
    /// Those that hold times against others: by a clock that counts instructions they are the same however busy this machine is.
    Times,
}

impl Share {
    /// How it is requested from the test program.
    fn asked(self) -> &'static str {
        match self {
            Self::All | Self::UserSide => "but-times",
            Self::Hooks => "hooks",
            Self::BehindHooks => "behind-hooks",
            Self::Times => "times",
        }
    }

    /// What it leaves out besides, by the beginnings of names.
    fn skipped(self) -> &'static [&'static str] {
        match self {
            Self::BehindHooks | Self::Times => &["harness::", "last::"],
            Self::All | Self::Hooks | Self::UserSide => &[],
        }
    }

    /// How many guests have a piece of it each.
    fn pieces(self) -> u8 {
        match self {
            // Their tests are few, and those of the user side take programs that fill a guest's memory.
            Self::UserSide | Self::Times => 1,
            Self::All | Self::Hooks | Self::BehindHooks => PIECES,
        }
    }
}

/// Tests that are the same on every kernel: run once.
const USER_SIDE: &str = "user::";
/// Where, if it is among the jobs.
const OF_USER_SIDE: (Series, Part) = (Series::Version(6, 1), Part::Fentry);

/// What the daily run has of arm64.
const ON_ARM64: (Arch, Series, Part) = (Arch::Arm64, Series::Newest, Part::Fentry);

/// The test that takes a Prometheus, which is larger than all else in a guest.
const SCRAPING: &str = "export_by_prometheus";
/// Memory for that: its programs lie in the guest's memory too.
const PROMETHEUS_MEBIBYTES: u32 = 768;

/// Memory for servers and clients of Debian's.
const TRACED_MEBIBYTES: u32 = 64;

/// The test that takes a container runtime and an image.
const CONTAINING: &str = "export_in_a_container";
/// Memory for those, and where the guest has the image.
const CONTAINER_MEBIBYTES: u32 = 256;
const IMAGE: &str = "root/net-latency.oci.tar";

/// Which kernels and backends are tested.
#[derive(Debug)]
pub(super) struct Choice {
    /// That of the tests on this machine, or the one that was named.
    arch: Arch,
    parts: Vec<(Arch, Series, Part)>,
    filter: Option<String>,
    soak: bool,
    /// How often each test runs.
    repeat: u16,
    /// Whether to look for what no earlier run has found.
    is_whole: bool,
    /// Kernels were named: everything runs on them.
    is_named: bool,
    /// Neither kernels nor tests were named, nor the whole: each kernel has its choice of tests.
    is_daily: bool,
}

impl Choice {
    /// The oldest backend on the oldest kernel, and the usual one on a usual kernel and on the newest; or those requested.
    pub(super) fn of(args: &TestArgs) -> Self {
        let arch = args.arch;
        let all = |series: Series| Part::ALL.map(|part| (arch, series, part));
        let parts: Vec<_> = match args.kernels.as_slice() {
            _ if args.no_guest => Vec::new(),
            [] if args.all => Series::matrix(arch).iter().copied().flat_map(all).collect(),
            [] if arch == Arch::Arm64 => vec![ON_ARM64],
            [] => {
                let (series, part) = OF_USER_SIDE;
                vec![
                    (arch, Series::Version(5, 10), Part::Kprobe),
                    (arch, Series::Newest, Part::Fentry),
                    (arch, series, part),
                ]
            }
            chosen => chosen.iter().copied().flat_map(all).collect(),
        };
        let is_named = !args.kernels.is_empty();
        // What is named is wanted of the architecture that is named.
        let is_alone = args.no_guest || is_named || args.filter.is_some();
        let mut beside = Vec::new();
        if !is_alone && arch.of_guests().iter().any(|other| *other != arch) {
            let both =
                |series: &Series| [Part::Fentry, Part::Kprobe].map(|part| (Arch::Arm64, *series, part));
            let every = Series::matrix(Arch::Arm64).iter().flat_map(both);
            beside = if args.all { every.collect() } else { vec![ON_ARM64] };
        }
        Self {
            arch,
            parts: beside.into_iter().chain(parts).collect(),
            filter: args.filter.clone(),
            soak: args.soak,
            repeat: args.repeat,
            is_whole: args.all,
            is_named,
            is_daily: !args.all && !is_named && args.filter.is_none(),
        }
    }

    /// What it takes.
    pub(super) fn needs(&self) -> Needs {
        let needs = Needs { build: self.archs().collect(), kernels: self.kernels(), ..Needs::default() };
        if self.arch.is_here() { needs.with_tests_here() } else { needs }
    }

    /// The architectures that it builds for: its own, and those of guests.
    pub(super) fn archs(&self) -> impl Iterator<Item = Arch> {
        let of_guests = |arch: &Arch| self.parts.iter().any(|(its, ..)| its == arch);
        Arch::value_variants().iter().copied().filter(move |arch| *arch == self.arch || of_guests(arch))
    }

    /// The kernels that it takes, each once.
    fn kernels(&self) -> Vec<(Arch, Series)> {
        let mut kernels: Vec<_> = self.parts.iter().map(|(arch, series, _)| (*arch, *series)).collect();
        kernels.dedup();
        kernels
    }

    /// The slowest first: PREEMPT_RT takes three times as long as the others, and the kernel that has the user side twice as long.
    fn jobs(&self, kernels: &[Kernel]) -> Vec<Job> {
        let with_kernel = |(arch, series, part): &(Arch, Series, Part)| {
            let is_it = |kernel: &&Kernel| (kernel.arch, kernel.series) == (*arch, *series);
            Some((kernels.iter().find(is_it)?.clone(), *part))
        };
        let is_wanted = |(_, part): &(Kernel, Part)| {
            *part != Part::Race || self.filter.as_ref().is_none_or(|filter| filter.contains("race"))
        };
        let mut found: Vec<_> = self.parts.iter().rev().filter_map(with_kernel).filter(is_wanted).collect();
        let has_user_side = |(kernel, part): &(Kernel, Part)| {
            (kernel.arch, (kernel.series, *part)) == (self.arch, OF_USER_SIDE)
        };
        found.sort_by_key(|job| (job.0.series != Series::RealTime, !has_user_side(job), job.1 as u8));
        let of_user_side = found.iter().position(has_user_side);
        // Elsewhere in the first guest that is not for races.
        let of_user_side = of_user_side.or_else(|| found.iter().position(|(_, part)| *part != Part::Race));
        let jobs = found.into_iter().enumerate().flat_map(|(place, (kernel, part))| {
            let is_user_side = Some(place) == of_user_side;
            let shares = self.shares(kernel.arch, kernel.series, part, is_user_side);
            let pieces = shares.iter().flat_map(move |share| {
                let of = if self.is_in_pieces(part) { share.pieces() } else { 1 };
                (1..=of).map(move |number| (*share, (number, of)))
            });
            pieces.map(move |(share, piece)| self.job(kernel.clone(), part, share, piece, is_user_side))
        });
        jobs.collect()
    }

    /// Whether several guests share a part. If tests are named, one guest runs all of them.
    fn is_in_pieces(&self, part: Part) -> bool {
        self.filter.is_none() && part != Part::Race
    }

    /// What guests a part is shared by.
    fn shares(&self, arch: Arch, series: Series, part: Part, is_user_side: bool) -> &'static [Share] {
        if part == Part::Race {
            return &[Share::All];
        }
        if self.filter.is_some() {
            return &[Share::All, Share::Times];
        }
        if is_user_side {
            return &[Share::BehindHooks, Share::UserSide, Share::Hooks, Share::Times];
        }
        // What comes behind the hooks is shown by one backend on the oldest kernel, on a usual one and on the newest: between those
        // the verifier knows no less.
        let is_between = matches!(series, Series::RealTime | Series::Version(6, 12));
        let is_elsewhere = is_between || (part == Part::Kprobe) != (series == OF_KPROBES);
        let has_all = self.is_named || self.is_whole && arch == self.arch && !is_elsewhere;
        if has_all { &[Share::All, Share::Times] } else { &[Share::Hooks, Share::Times] }
    }

    fn job(&self, kernel: Kernel, part: Part, share: Share, piece: (u8, u8), is_user_side: bool) -> Job {
        let mut skipped = [part.skipped(), share.skipped()].concat();
        let has_user_side = is_user_side && matches!(share, Share::All | Share::UserSide);
        if !has_user_side {
            skipped.push(USER_SIDE);
        }
        let is_daily = self.is_daily || kernel.arch != self.arch;
        let on_newest = self.is_whole && !is_daily && (kernel.series, part) == (Series::Newest, Part::Fentry);
        if !(self.is_named || is_user_side || on_newest) {
            skipped.push(INCIDENTS);
        }
        if self.is_whole && kernel.series == Series::RealTime {
            skipped.push(JOURNEYS);
        }
        let skipped = skipped.into_iter().flat_map(|name| ["--skip".into(), OsString::from(name)]);
        // A test program takes one filter: these tests are few.
        let filter = match (part, share) {
            (Part::Race, _) => Some(RACE_FILTER),
            (_, Share::UserSide) => Some(USER_SIDE),
            _ => self.filter.as_deref(),
        };
        let has = |test: &str| {
            let name = format!("{USER_SIDE}{test}");
            has_user_side && filter.is_none_or(|filter| name.contains(filter))
        };
        let (scrapes, contains) = (has(SCRAPING), has(CONTAINING));
        let arguments = skipped.chain(filter.map(OsString::from)).collect();
        Job { kernel, part, arguments, scrapes, contains, is_daily, share, piece }
    }
}

/// A guest's work.
#[derive(Debug)]
struct Job {
    kernel: Kernel,
    part: Part,
    arguments: Vec<OsString>,
    /// It is among the tests that a Prometheus scrapes the tool.
    scrapes: bool,
    /// It is among the tests that the tool runs in a container.
    contains: bool,
    /// It has the daily run's choice of the tests, as all guests of another architecture.
    is_daily: bool,
    share: Share,
    /// Which piece of the share, and of how many.
    piece: (u8, u8),
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}, {}", self.kernel.full_name(), self.part)?;
        f.write_str(match self.share {
            Share::All => "",
            Share::Hooks => ", hooks",
            Share::BehindHooks => ", behind the hooks",
            Share::UserSide => ", user side",
            Share::Times => ", times",
        })?;
        match self.piece {
            (_, 1) => Ok(()),
            (number, of) => write!(f, ", {number} of {of}"),
        }
    }
}

/// What every guest gets.
#[derive(Default)]
pub(super) struct Programs {
    /// For each architecture what goes into guests, and the test program.
    pub(super) tested: Vec<(Arch, Built, PathBuf)>,
    /// The tool as users have it, if the cost is to be measured.
    pub(super) released: Option<(Built, PathBuf)>,
}

impl Programs {
    fn built_for(&self, arch: Arch) -> Option<(&Built, &PathBuf)> {
        self.tested.iter().find(|(its, ..)| *its == arch).map(|(_, built, tests)| (built, tests))
    }
}

/// Runs the guest tests on those of the chosen kernels that are here.
pub(super) fn run(choice: &Choice, kernels: &[Kernel], programs: &Programs, summary: &mut Summary) {
    let processors = thread::available_parallelism().map_or(1, Into::into);
    let watched = (choice.arch, bench::watched(choice.arch));
    let is_watched = |kernel: &&Kernel| choice.filter.is_none() && (kernel.arch, kernel.series) == watched;
    let watched = kernels.iter().find(is_watched).zip(programs.released.as_ref());
    let mut jobs = choice.jobs(kernels);
    // Why nothing was built for others has been counted.
    jobs.retain(|job| programs.built_for(job.kernel.arch).is_some());
    let cost = thread::scope(|scope| {
        // A guest whose clock counts instructions doesn't mind others.
        let cost = watched.map(|(kernel, (built, tests))| {
            scope.spawn(move || {
                let mut summary = Summary::default();
                if phase("the cost", &mut summary, |_| bench::watch(kernel, built, tests)).is_some() {
                    summary.pass();
                }
                summary
            })
        });
        play_all(choice, jobs, processors + GUESTS_BEYOND, programs, summary);
        cost.map(|cost| cost.join().expect("measuring doesn't panic"))
    });
    if let Some(cost) = cost {
        summary.add(cost);
    }
}

/// Plays all, some at a time, and beside them the first of PREEMPT_RT: there a guest waits for three quarters of its time, above all
/// for the 0.7 s that it takes to detach a probe.
fn play_all(choice: &Choice, jobs: Vec<Job>, at_a_time: usize, programs: &Programs, summary: &mut Summary) {
    let mut jobs = VecDeque::from(jobs);
    let beside = jobs.pop_front_if(|job| job.kernel.series == Series::RealTime);
    let queue = Mutex::new(jobs);
    let summary = Mutex::new(summary);
    let take = || queue.lock().expect("no holder of the lock panics").pop_front();
    let play_one = |job: Job| {
        eprintln!("xtask: {job}: testing …");
        let start = Instant::now();
        let result = play(choice, &job, programs);
        let mut summary = summary.lock().expect("no holder of the lock panics");
        report(&job, result, start.elapsed(), &mut summary);
    };
    thread::scope(|scope| {
        if let Some(job) = beside {
            scope.spawn(|| play_one(job));
        }
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(job) = take() {
                    play_one(job);
                }
            });
        }
    });
}

fn play(choice: &Choice, job: &Job, programs: &Programs) -> Result<(Outcome, String)> {
    let mut command = vec![TEST_PROGRAM.into(), "--test-threads=1".into(), "--color=never".into()];
    command.extend(job.arguments.iter().cloned());
    let arch = job.kernel.arch;
    let (built, tests) = programs.built_for(arch).context("nothing was built for it")?;
    let mut contents = contents(job.kernel.clone(), built, command);
    contents.programs.push((TEST_PROGRAM.into(), tests.clone()));
    contents.files = programs::files(arch, programs::STRACE)?;
    contents.files.extend(programs::files_of(arch, programs::WIREGUARD_TOOLS, programs::WG)?);
    if job.part != Part::Race {
        for (package, names) in programs::TRACED {
            for name in names {
                contents.files.extend(programs::files_of(arch, package, name)?);
            }
        }
        contents.mebibytes += TRACED_MEBIBYTES;
    }
    if job.scrapes {
        for program in [programs::PROMETHEUS, programs::PROMTOOL] {
            contents.files.extend(programs::files_of(arch, programs::PROMETHEUS, program)?);
        }
        contents.mebibytes += PROMETHEUS_MEBIBYTES;
    }
    if job.contains {
        // Named as initramfs images are, so that one whose xtask has gone is removed by the next.
        let image = paths::guest().join(format!("container-{}-image.tar", process::id()));
        fs::create_dir_all(paths::guest())?;
        dist::image_for_tests(arch, &built.tool, &image)?;
        contents.files.push((IMAGE.into(), image));
        for program in [programs::UMOCI, programs::CRUN] {
            contents.files.extend(programs::files(arch, program)?);
        }
        contents.mebibytes += CONTAINER_MEBIBYTES;
    }
    contents.has_cards = true;
    contents.processors = if job.share == Share::Times { Processors::Counted } else { job.part.processors() };
    let mut limit = GUEST_LIMIT;
    let repeat = choice.repeat.to_string();
    let piece = format!("{}/{}", job.piece.0, job.piece.1);
    let mut set = |(name, value): (&str, &str)| contents.environment.push((name.into(), value.into()));
    set(CARDS);
    // Firmware of QEMU's machines of arm64 puts none to sleep.
    if arch == Arch::X86_64 {
        set(WOKEN);
    }
    set((REPEAT, repeat.as_str()));
    set((PIECE, piece.as_str()));
    if job.part == Part::Race {
        set(RACE);
    }
    if job.is_daily {
        set(DAILY);
    }
    set((SHARE, job.share.asked()));
    if !choice.is_whole {
        set(SOAK_SEED);
    }
    if choice.soak {
        set(SOAK);
        limit += SOAK_LIMIT;
    }
    limit *= u32::from(choice.repeat);
    captured(&contents, limit)
}

/// Prints a guest's output in one piece, each line with its kernel in front, and counts what passed and failed.
fn report(job: &Job, result: Result<(Outcome, String)>, took: Duration, summary: &mut Summary) {
    let name = job.to_string();
    let mut text = String::new();
    match result {
        Ok((Outcome::Exited(status), output)) => {
            text += &output;
            summary.add_run(&name, &output, status.into());
        }
        Ok((Outcome::Died { reason, tail }, output)) => {
            text += &format!("{output}\nthe guest died: {reason}; its console's last lines:\n{tail}\n");
            summary.fail(&name, &format!("the guest died: {reason}; its console's last lines:\n{tail}"));
        }
        Err(error) => summary.fail(&name, &format!("{error:#}")),
    }
    let mut stdout = io::stdout().lock();
    for line in text.lines() {
        // If standard output is closed, no reader is left; the exit code still counts.
        drop(writeln!(stdout, "{:>4} | {line}", job.kernel.full_name()));
    }
    eprintln!("xtask: {name}: {:.0} s", took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guests of a part that has the user side too.
    const SHARES: [&str; 4] = ["behind the hooks", "user side", "hooks", "times"];

    fn kernel(arch: Arch, series: Series) -> Kernel {
        Kernel::named(arch, series, &series.to_string())
    }

    fn args() -> TestArgs {
        TestArgs {
            arch: Arch::X86_64,
            all: false,
            kernels: Vec::new(),
            no_guest: false,
            filter: None,
            repeat: 1,
            soak: false,
        }
    }

    fn jobs(args: &TestArgs) -> Vec<Job> {
        let choice = Choice::of(args);
        let kernels: Vec<_> =
            choice.kernels().into_iter().map(|(arch, series)| kernel(arch, series)).collect();
        choice.jobs(&kernels)
    }

    fn named(jobs: &[Job]) -> Vec<String> {
        jobs.iter().map(ToString::to_string).collect()
    }

    /// Those that are wanted, each once for all of its pieces.
    fn whole(jobs: &[Job], is_wanted: impl Fn(&Job) -> bool) -> Vec<String> {
        let first = jobs.iter().filter(|job| job.piece.0 == 1 && is_wanted(job));
        first.map(|job| job.to_string().replace(", 1 of 2", "")).collect()
    }

    #[test]
    fn the_default_is_a_choice_and_all_is_all() {
        let few = [
            "kernel 6.1, fentry or auto, behind the hooks, 1 of 2",
            "kernel 6.1, fentry or auto, behind the hooks, 2 of 2",
            "kernel 6.1, fentry or auto, user side",
            "kernel 6.1, fentry or auto, hooks, 1 of 2",
            "kernel 6.1, fentry or auto, hooks, 2 of 2",
            "kernel 6.1, fentry or auto, times",
            "kernel newest, fentry or auto, hooks, 1 of 2",
            "kernel newest, fentry or auto, hooks, 2 of 2",
            "kernel newest, fentry or auto, times",
            "kernel newest arm64, fentry or auto, hooks, 1 of 2",
            "kernel newest arm64, fentry or auto, hooks, 2 of 2",
            "kernel newest arm64, fentry or auto, times",
            "kernel 5.10, kprobe, hooks, 1 of 2",
            "kernel 5.10, kprobe, hooks, 2 of 2",
            "kernel 5.10, kprobe, times",
        ];
        assert_eq!(named(&jobs(&args())), few);
        let all = named(&jobs(&TestArgs { all: true, ..args() }));
        // Races have one guest for each kernel, both backends three, and the user side and what comes behind the hooks three more.
        let of_arm64 = all.iter().filter(|name| name.contains("arm64")).count();
        assert_eq!(of_arm64, 6 * Series::matrix(Arch::Arm64).len());
        assert_eq!(all.len() - of_arm64, 7 * Series::matrix(Arch::X86_64).len() + 3);
        assert_eq!(all[0], "kernel rt, fentry or auto, hooks, 1 of 2");
        assert!(few[..6].iter().all(|job| all.contains(&(*job).to_owned())), "{all:?}");
        let filtered = jobs(&TestArgs { all: true, filter: Some("who".into()), ..args() });
        assert!(filtered.iter().all(|job| job.kernel.arch == Arch::X86_64), "{filtered:?}");
        assert!(jobs(&TestArgs { no_guest: true, ..args() }).is_empty());
    }

    #[test]
    fn what_comes_behind_the_hooks_is_tested_on_three_kernels_and_by_kprobes_on_the_oldest() {
        let alone = |args: &TestArgs| {
            whole(&jobs(args), |job| job.share == Share::Hooks && job.kernel.arch == Arch::X86_64)
        };
        let all = TestArgs { all: true, ..args() };
        let expected = [
            "kernel rt, fentry or auto, hooks",
            "kernel rt, kprobe, hooks",
            "kernel 6.1, fentry or auto, hooks",
            "kernel 6.12, fentry or auto, hooks",
            "kernel 5.10, fentry or auto, hooks",
            "kernel newest, kprobe, hooks",
            "kernel 6.12, kprobe, hooks",
            "kernel 6.1, kprobe, hooks",
        ];
        assert_eq!(alone(&all), expected);
        let named = jobs(&TestArgs { kernels: vec![Series::RealTime], ..args() });
        let of_rt = SHARES.map(|share| format!("kernel rt, fentry or auto, {share}"));
        let all_there_is =
            [&of_rt[..], &["kernel rt, kprobe", "kernel rt, kprobe, times"].map(Into::into)].concat();
        assert_eq!(whole(&named, |job| job.part != Part::Race), all_there_is);
    }

    #[test]
    fn incidents_are_made_on_a_usual_kernel_and_on_the_newest() {
        let has_them = |args: &TestArgs| {
            whole(&jobs(args), |job| !job.arguments.iter().any(|argument| argument == INCIDENTS))
        };
        let of_61 = SHARES.map(|share| format!("kernel 6.1, fentry or auto, {share}"));
        assert_eq!(has_them(&args()), of_61);
        let of_newest = ["kernel newest, fentry or auto", "kernel newest, fentry or auto, times"];
        let all = [&of_61[..], &of_newest.map(Into::into)].concat();
        assert_eq!(has_them(&TestArgs { all: true, ..args() }), all);
        let named = TestArgs { kernels: vec![Series::Version(5, 10)], ..args() };
        assert_eq!(has_them(&named).len(), SHARES.len() + 3);
    }

    #[test]
    fn a_kernel_that_is_not_there_is_not_tested() {
        let choice = Choice::of(&args());
        // What comes behind the hooks, and the user side, is tested where there is a kernel.
        let of_510 = SHARES.map(|share| format!("kernel 5.10, kprobe, {share}"));
        assert_eq!(whole(&choice.jobs(&[kernel(Arch::X86_64, Series::Version(5, 10))]), |_| true), of_510);
    }

    #[test]
    fn races_are_looked_for_in_guests_of_their_own() {
        let of_61 = |filter: Option<&str>| {
            let kernels = vec![Series::Version(6, 1)];
            jobs(&TestArgs { kernels, filter: filter.map(str::to_owned), ..args() })
        };
        let race = of_61(None).into_iter().find(|job| job.part == Part::Race).expect("a guest for races");
        assert!(race.arguments.iter().any(|argument| argument == RACE_FILTER), "{race:?}");
        let named = named(&of_61(Some("conversation")));
        let both = ["kernel 6.1, fentry or auto", "kernel 6.1, kprobe"];
        assert_eq!(
            named,
            both.iter().flat_map(|part| [(*part).to_owned(), format!("{part}, times")]).collect::<Vec<_>>()
        );
        assert!(of_61(Some("race")).iter().any(|job| job.part == Part::Race));
        // But for the one for races, each has another one for times.
        assert_eq!(of_61(Some("race")).len(), 2 * Part::ALL.len() - 1);
    }

    #[test]
    fn what_is_the_same_everywhere_is_tested_once() {
        let has_user_side = |job: &Job| !job.arguments.windows(2).any(|pair| pair == ["--skip", USER_SIDE]);
        let of_61 = "kernel 6.1, fentry or auto, user side";
        for (args, place) in [
            (TestArgs { all: true, ..args() }, of_61),
            (args(), of_61),
            (TestArgs { kernels: vec![Series::RealTime], ..args() }, "kernel rt, fentry or auto, user side"),
        ] {
            assert_eq!(whole(&jobs(&args), has_user_side), [place]);
        }
    }
}
