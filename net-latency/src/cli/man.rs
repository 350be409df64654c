//! `net-latency man`: the manual page, made from the same definition as `--help`.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use roff::{Roff, bold, roman};

/// One page for the tool and its subcommands: what `man net-latency` should show.
pub(super) fn page(mut command: Command) -> String {
    command.build();
    let whole = usage(&command);
    let usages: Vec<String> = whole
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.ends_with("<COMMAND>"))
        .chain(views(&command).map(usage))
        .collect();
    let man = Man::new(command.clone().override_usage(usages.join("\n")));
    let mut page = Roff::new().render();
    // Not by `Man`, which leaves the place of a date that is not given to what comes next.
    page += &format!(
        ".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n",
        "NET-LATENCY",
        command.get_name(),
        env!("CARGO_PKG_VERSION")
    );
    page += &rendered(|out| man.render_name_section(out));
    page += &rendered(|out| man.render_synopsis_section(out));
    page += &rendered(|out| man.render_description_section(out));
    page += &rendered(|out| man.render_options_section(out));

    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    page += &roff.to_roff();
    for view in views(&command) {
        page += &section_of(view, &command);
    }
    page += &literal_sections(&help_after(&command));
    page
}

fn views(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|view| view.get_name() != "help" && !view.is_hide_set())
}

/// How the view is called, in one line.
fn usage(view: &Command) -> String {
    let usage = view.clone().term_width(0).render_usage().to_string();
    usage.trim_start_matches("Usage:").trim().to_owned()
}

/// A view's part of the page: what it does and the options that are its own.
fn section_of(view: &Command, whole: &Command) -> String {
    let is_shared = |arg: &Arg| {
        whole.get_arguments().any(|other| {
            other.get_long() == arg.get_long()
                && other.get_short() == arg.get_short()
                && other.get_help().map(ToString::to_string) == arg.get_help().map(ToString::to_string)
        })
    };
    let shared: Vec<String> = view
        .get_arguments()
        .filter(|arg| !arg.is_positional() && !arg.is_hide_set() && is_shared(arg))
        .filter_map(Arg::get_long)
        .filter(|long| *long != "help")
        .map(|long| format!("--{long}"))
        .collect();

    let mut roff = Roff::new();
    roff.control("SS", [usage(view).as_str()]);
    if let Some(about) = view.get_long_about().or_else(|| view.get_about()) {
        for line in about.to_string().lines() {
            if line.trim().is_empty() {
                roff.control("PP", []);
            } else {
                roff.text([roman(line)]);
            }
        }
    }
    let mut section = roff.to_roff();

    // Not under the headings of the help, which would end this section.
    let own = view.clone().mut_args(|arg| {
        let hidden = !arg.is_positional() && (is_shared(&arg) || arg.get_long() == Some("help"));
        arg.help_heading(None::<&str>).hide(hidden)
    });
    let options = rendered(|out| Man::new(own).render_options_section(out));
    section += options.strip_prefix(".SH OPTIONS\n").unwrap_or(&options);

    if !shared.is_empty() {
        let mut roff = Roff::new();
        roff.control("PP", []);
        roff.text([roman("As above: "), bold(shared.join(", ")), roman(".")]);
        section += &roff.to_roff();
    }
    let after = help_after(view);
    if !after.is_empty() {
        let mut roff = Roff::new();
        roff.control("PP", []);
        literal(&mut roff, after.lines());
        section += &roff.to_roff();
    }
    section
}

fn help_after(command: &Command) -> String {
    command
        .get_after_long_help()
        .or_else(|| command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// What stands behind the options of the help: paragraphs, the first line of each its heading.
fn literal_sections(text: &str) -> String {
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n") {
        let mut lines = paragraph.lines();
        let Some(heading) = lines.next() else { continue };
        roff.control("SH", [heading.trim_end_matches(':').to_uppercase().as_str()]);
        literal(&mut roff, lines);
    }
    roff.to_roff()
}

/// Lines that stay as they are.
fn literal<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn rendered(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    render(&mut out).expect("a vector takes everything");
    let text = String::from_utf8(out).expect("a page is text");
    // Each begins with definitions of which the page needs one.
    match text.strip_prefix(&Roff::new().render()) {
        Some(part) => part.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_follow_the_tool_on_one_page() {
        let shared =
            Arg::new("port").long("port").value_name("PORT").help("Only this port").help_heading("Packets");
        let view = Command::new("check")
            .about("Say what can be traced")
            .args([shared.clone(), Arg::new("trial").long("trial").value_name("SIZE").help("Its own")])
            .arg(Arg::new("file").value_name("FILE").required(true).help("What to read"));
        let tool = Command::new("net-latency")
            .about("Shows where the time went")
            .after_help(
                "Examples:\n  net-latency --port 443   one port\n  .net-latency\n\nExit codes:\n  0  done",
            )
            .arg(shared)
            .args_conflicts_with_subcommands(true)
            .subcommand(view);
        let page = page(tool).replace(env!("CARGO_PKG_VERSION"), "VERSION");
        insta::assert_snapshot!(page);
    }

    #[test]
    fn every_option_of_every_view_is_on_the_page() {
        let mut command = crate::cli::command();
        let page = page(command.clone()).replace("\\-", "-");
        command.build();
        for command in views(&command).chain([&command]) {
            for option in command.get_arguments().filter_map(Arg::get_long) {
                assert!(page.contains(&format!("--{option}")), "--{option} of {}", command.get_name());
            }
            assert!(page.contains(command.get_name()), "{}", command.get_name());
        }
    }
}
