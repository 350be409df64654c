//! Adds up what many test programs report.

use std::fmt;

/// Lines shown of why a test failed: what it wanted, and the beginning of what it saw.
const MESSAGE_LINES: usize = 12;

/// What has passed and failed so far.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    /// What failed, and why.
    reasons: Vec<String>,
    /// What failed at first.
    second_tries: Vec<String>,
}

/// A test that failed, by its program's own report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FailedTest {
    pub(crate) name: String,
    message: String,
}

impl Summary {
    /// Counts a failed step.
    pub(crate) fn fail(&mut self, what: &str, why: &str) {
        self.failed += 1;
        self.reasons.push(format!("{what}: {why}"));
    }

    /// Counts a step that is a test by itself.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts a test that failed for good.
    pub(crate) fn fail_test(&mut self, place: &str, test: FailedTest) {
        self.fail(&format!("{place}: {}", test.name), &test.message);
    }

    /// Tests that passed so far.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Remembers a test that has been counted as passed after having failed.
    pub(crate) fn passed_again(&mut self, place: &str, test: &FailedTest) {
        self.second_tries.push(format!("{place}: {}: {}", test.name, test.message));
    }

    /// Counts the tests of a finished run. One that failed otherwise than by its tests is a failure by itself,
    /// and so is one that reports no result.
    pub(crate) fn add_run(&mut self, what: &str, output: &str, status: i32) {
        let counts = self.add_passed(what, output, status);
        self.failed += counts.failed;
    }

    /// The same without counting the failed tests: it returns them, each to be counted or tried again.
    pub(crate) fn add_guest(&mut self, what: &str, output: &str, status: i32) -> Vec<FailedTest> {
        let counts = self.add_passed(what, output, status);
        let tests = failed_tests(output);
        if tests.len() as u64 != counts.failed {
            self.fail(what, &format!("{} tests failed, but it names {}", counts.failed, tests.len()));
        }
        tests
    }

    fn add_passed(&mut self, what: &str, output: &str, status: i32) -> Counts {
        let counts = Counts::of(output);
        self.passed += counts.passed;
        if counts.programs == 0 {
            self.fail(what, &format!("no test result; exit status {status}"));
        } else if status != 0 && counts.failed == 0 {
            self.fail(what, "failed, though no test did: a program didn't build or died");
        } else if status == 0 && counts.failed > 0 {
            self.fail(what, "reports success in spite of failed tests");
        }
        counts
    }

    /// Prints why steps failed, and what succeeded only when it was tried again.
    pub(crate) fn explain(&self) {
        for (what, messages) in
            [("passed when run again alone", &self.second_tries), ("failed", &self.reasons)]
        {
            for message in messages {
                eprintln!("xtask: {what}: {message}");
            }
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
struct Counts {
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

/// The tests that a program reports as failed: each has a part of its own, headed `---- NAME ----`, behind all tests.
fn failed_tests(output: &str) -> Vec<FailedTest> {
    let heading = |line: &str| Some(line.strip_prefix("---- ")?.strip_suffix(" ----")?.to_owned());
    let mut tests: Vec<FailedTest> = Vec::new();
    let mut lines = 0;
    for line in output.lines().map(str::trim_end) {
        if let Some(name) = heading(line) {
            tests.push(FailedTest { name, message: String::new() });
            lines = 0;
        } else if line == "failures:" || line.starts_with("test result: ") {
            lines = MESSAGE_LINES;
        } else if let Some(test) = tests.last_mut()
            && lines < MESSAGE_LINES
        {
            test.message += if lines == 0 { "" } else { "\n" };
            test.message += line;
            lines += 1;
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "running 2 tests\n..\n\
        test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\r\n";
    const BAD: &str = "test a ... FAILED\n\nfailures:\n\n---- a ----\n3 lines, not 4\n{\"ts\":1}\n\n---- b::c ----\n\
        no line\n\n\nfailures:\n    a\n    b::c\n\n\
        test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";

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

    #[test]
    fn failed_tests_are_known_by_name() {
        let mut summary = Summary::default();
        let tests = summary.add_guest("guest", BAD, 101);
        assert_eq!(
            tests,
            [("a", "3 lines, not 4\n{\"ts\":1}\n"), ("b::c", "no line\n\n")]
                .map(|(name, message)| FailedTest { name: name.into(), message: message.into() })
        );
        assert_eq!(summary.to_string(), "4 passed, 0 failed");
        summary.fail_test("guest", tests[0].clone());
        assert_eq!(summary.to_string(), "4 passed, 1 failed");
    }

    #[test]
    fn a_failed_test_without_a_name_still_counts() {
        let mut summary = Summary::default();
        assert_eq!(summary.add_guest("guest", &BAD.replace("----", "--"), 101), []);
        assert_eq!(summary.to_string(), "4 passed, 1 failed");
    }
}
