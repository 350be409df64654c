//! `net-latency completions SHELL`: what the shell needs to complete the options.

use clap_complete::Shell;

pub(super) fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "net-latency", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_learns_every_long_option() {
        let command = crate::cli::command();
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(script(shell)).expect("scripts are text");
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(script.contains(option), "{shell} does not learn --{option}");
            }
            for view in command.get_subcommands().map(clap::Command::get_name) {
                assert!(script.contains(view), "{shell} does not learn {view}");
            }
        }
    }
}
