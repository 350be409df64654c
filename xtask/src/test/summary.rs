//! Adds up what many test programs report.

use std::fmt;

/// What has passed and failed so far.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    /// What failed other than a single test, and why.
    reasons: Vec<String>,
}

impl Summary {
    /// Counts a failed step.
    pub(crate) fn fail(&mut self, what: &str, why: &str) {
        self.failed += 1;
        self.reasons.push(format!("{what}: {why}"));
    }

    /// Counts the tests in some output.
    pub(crate) fn add_counts(&mut self, output: &str) -> Counts {
        let counts = Counts::of(output);
        self.passed += counts.passed;
        self.failed += counts.failed;
        counts
    }

    /// Counts the tests of a finished run. One that failed otherwise than by its tests is a failure by itself,
    /// and so is one that reports no result.
    pub(crate) fn add_run(&mut self, what: &str, output: &str, status: i32) {
        let counts = self.add_counts(output);
        if counts.programs == 0 {
            self.fail(what, &format!("no test result; exit status {status}"));
        } else if status != 0 && counts.failed == 0 {
            self.fail(what, "failed, though no test did: a program didn't build or died");
        } else if status == 0 && counts.failed > 0 {
            self.fail(what, "reports success in spite of failed tests");
        }
    }

    /// Prints why steps failed.
    pub(crate) fn explain(&self) {
        for reason in &self.reasons {
            eprintln!("xtask: {reason}");
        }
    }

    /// Whether nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The sums of the result lines in some output.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counts {
    programs: u64,
    passed: u64,
    failed: u64,
}

impl Counts {
    fn of(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines() {
            let Some(result) = line.trim().strip_prefix("test result: ") else { continue };
            counts.programs += 1;
            counts.passed += count(result, " passed");
            counts.failed += count(result, " failed");
        }
        counts
    }
}

/// The number before a word, as in `ok. 12 passed; 0 failed`.
fn count(result: &str, word: &str) -> u64 {
    let number = |part: &str| part.strip_suffix(word)?.rsplit(' ').next()?.parse().ok();
    result.split(';').find_map(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "running 2 tests\n..\n\
        test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\r\n";
    const BAD: &str = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";

    fn summed(output: &str, status: i32) -> String {
        let mut summary = Summary::default();
        summary.add_run("run", output, status);
        summary.to_string()
    }

    #[test]
    fn result_lines_add_up() {
        assert_eq!(Counts::of(&format!("{GOOD}{BAD}")), Counts { programs: 3, passed: 17, failed: 2 });
        assert_eq!(summed(GOOD, 0), "13 passed, 0 failed");
        assert_eq!(summed(BAD, 101), "4 passed, 2 failed");
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts() {
        assert_eq!(summed(GOOD, 101), "13 passed, 1 failed");
    }

    #[test]
    fn a_run_without_a_result_is_a_failure() {
        assert_eq!(summed("", 0), "0 passed, 1 failed");
    }

    #[test]
    fn a_lie_is_a_failure() {
        assert_eq!(summed(BAD, 0), "4 passed, 3 failed");
    }
}
