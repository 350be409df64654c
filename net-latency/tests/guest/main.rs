//! What net-latency promises, shown with real TCP traffic on a real kernel.
//!
//! Runs as root on a kernel that can be traced, normally in a guest (`cargo xtask test`). The traffic
//! comes from processes of this same binary (see `peers`), so that each has a PID and a name of its own.

mod allowance;
mod arch;
mod bench;
mod cases;
mod confine;
mod footer;
mod ftrace;
mod incidents;
mod leftovers;
mod lines;
mod net;
mod oracle;
mod peers;
mod process;
mod skips;
mod terminal;
mod tool;
mod verdict;

use std::{
    env,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use cases::{
    daily,
    truth::{Session, Theme},
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tool::Backend;
use verdict::{Skipped, judge};

/// Set to 1 if this is known to be root on a kernel that can be traced.
const GUEST: &str = "NET_LATENCY_GUEST";

/// Which of several pieces of the tests this guest has, such as `2/2`. All of them if it is not set.
const PIECE: &str = "NET_LATENCY_PIECE";

/// How often each test runs, if not once.
const REPEAT: &str = "NET_LATENCY_REPEAT";

/// What takes longer is told: the whole run shall stay short.
const SLOW: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match env::args_os().nth(1).as_deref().and_then(|role| role.to_str()) {
        Some(peers::ROLE) => peers::main(),
        Some(confine::ROLE) => confine::main(),
        Some(incidents::ROLE) => incidents::main(&env::args().skip(2).collect::<Vec<_>>()),
        Some(bench::ROLE) => bench::main(&env::args().skip(2).collect::<Vec<_>>()),
        _ => {
            let arguments = Arguments::from_args();
            let times = env::var(REPEAT).ok().and_then(|times| times.parse().ok()).unwrap_or(1);
            // One after the other: what a test leaves behind may make the next one fail.
            let mut trials: Vec<_> = (0..times).flat_map(|_| trials(&arguments)).collect();
            if Piece::wanted().is_last() {
                // Lockdown can't be lifted before the next boot, so nothing may come after it.
                let (name, case) = cases::prerequisites::LOCKDOWN;
                trials.push(trial(format!("last::{name}"), case));
            }
            libtest_mimic::run(&arguments, trials).exit_code()
        }
    }
}

/// A piece of the tests: they are dealt to the guests in turn, a theme of scenarios as one.
struct Piece {
    number: usize,
    of: usize,
    dealt: usize,
}

impl Piece {
    fn wanted() -> Self {
        let [number, of] = env::var(PIECE).map_or([1, 1], |piece| {
            let numbers = piece.split_once('/').and_then(|(number, of)| {
                let (number, of) = (number.parse().ok()?, of.parse().ok()?);
                (1..=of).contains(&number).then_some([number, of])
            });
            numbers.unwrap_or_else(|| panic!("{PIECE} is {piece}, which is no piece such as 2/2"))
        });
        Self { number, of, dealt: 0 }
    }

    /// Deals the next test. Whether this piece gets it.
    fn has_next(&mut self) -> bool {
        let is_ours = self.dealt % self.of == self.number - 1;
        self.dealt += 1;
        is_ours
    }

    fn is_last(&self) -> bool {
        self.number == self.of
    }
}

/// A test, which is not run where this is no guest.
fn trial(name: String, run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    let able = env::var_os(GUEST).is_some_and(|value| value == "1");
    let full_name = name.clone();
    let trial = Trial::ignorable_test(name, move || {
        let start = Instant::now();
        let verdict = run();
        if start.elapsed() > SLOW {
            println!("{full_name} took {:.0} s", start.elapsed().as_secs_f64());
        }
        match verdict {
            Ok(()) => Ok(Completion::Completed),
            Err(error) if error.is::<Skipped>() => {
                println!("skipped: {full_name}: {error}");
                Ok(Completion::ignored())
            }
            Err(error) => Err(Failed::from(format!("{error:#}"))),
        }
    });
    if able {
        trial
    } else {
        trial.with_ignored_flag(true).with_kind("needs root on a traceable kernel: cargo xtask test")
    }
}

fn trials(arguments: &Arguments) -> Vec<Trial> {
    let judged = |name: String, backend: Backend, case: fn(Backend) -> anyhow::Result<()>| {
        let own_name = name.clone();
        trial(name, move || judge(&own_name, case(backend), || case(backend)))
    };
    let mut trials = Vec::new();
    let mut piece = Piece::wanted();
    let usual = Backend::tested()[0];
    let of_harness = cases::harness::CASES.iter().filter(|(name, _)| daily::has(name, usual));
    for (name, case) in of_harness.filter(|_| piece.has_next()) {
        trials.push(trial(format!("harness::{name}"), *case));
    }
    // Whatever the backend; `cargo xtask test` asks one guest for them.
    let is_of_user_side = |name: &str| cases::is_of_user_side(name) && daily::has(name, usual);
    for (name, case) in cases::all().filter(|(name, _)| is_of_user_side(name) && piece.has_next()) {
        trials.push(judged(format!("user::{name}"), usual, case));
    }
    for backend in Backend::tested() {
        let of_backend = |name| {
            cases::applies(name, backend) && !cases::is_of_user_side(name) && daily::has(name, backend)
        };
        for (name, case) in cases::all().filter(|(name, _)| of_backend(name) && piece.has_next()) {
            trials.push(judged(format!("{backend}::{name}"), backend, case));
        }
        let is_played = |theme: &&Theme| {
            let name = format!("truth::{}", theme.name);
            cases::is_played(&name) && daily::has(&name, backend)
        };
        for theme in cases::truth::THEMES.iter().filter(|theme| is_played(theme) && piece.has_next()) {
            let full_name = |name: &str| format!("{backend}::truth::{}::{name}", theme.name);
            let names = theme.scenarios.iter().map(|scenario| scenario.name);
            // A run of the tool that many share plays those alone that are wanted.
            let is_wanted =
                |name: &&str| arguments.filter.as_ref().is_none_or(|filter| full_name(name).contains(filter));
            let session = Arc::new(Session::new(backend, theme, names.clone().filter(is_wanted).collect()));
            for name in names {
                let session = Arc::clone(&session);
                let own_name = full_name(name);
                let judged = move || judge(&own_name, session.judge(name), || session.judge_alone(name));
                trials.push(trial(full_name(name), judged));
            }
        }
    }
    trials
}
