//! `net-latency man`: the manual pages, made from the same definition as `--help`.

use std::{io, iter};

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

/// All pages, each with its file's name: that of the tool, and one for each subcommand.
pub(super) fn pages(mut tool: Command) -> Vec<(String, Vec<u8>)> {
    tool.build();
    let pages = iter::once(&tool).chain(subcommands(&tool));
    pages.map(|command| (format!("{}.1", name(command)), page(command, &tool).into_bytes())).collect()
}

/// The page of the tool, or of its subcommand of that name. The error says which there are.
pub(super) fn page_of(mut tool: Command, subcommand: Option<&str>) -> Result<String, String> {
    tool.build();
    let Some(wanted) = subcommand else { return Ok(page(&tool, &tool)) };
    let found = subcommands(&tool).find(|command| command.get_name() == wanted);
    found.map(|command| page(command, &tool)).ok_or_else(|| {
        let names: Vec<_> = subcommands(&tool).map(Command::get_name).collect();
        format!("there is no subcommand {wanted}; there are {}", names.join(", "))
    })
}

fn page(command: &Command, tool: &Command) -> String {
    let is_tool = command.get_name() == tool.get_name();
    let usages = if is_tool { usage(tool) } else { vec![usage(command).concat()] };
    let man = Man::new(command.clone().override_usage(usages.join("\n")));
    let mut page = Roff::new().render();
    // Not by `Man`, which leaves the place of a date that is not given to what comes next.
    page += &format!(
        ".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n",
        name(command).to_uppercase(),
        tool.get_name(),
        env!("CARGO_PKG_VERSION")
    );
    page += &rendered(|out| man.render_name_section(out));
    page += &rendered(|out| man.render_synopsis_section(out));
    page += &rendered(|out| man.render_description_section(out));
    page += &rendered(|out| man.render_options_section(out));
    if is_tool {
        page += &commands(tool);
    }
    page += &literal_sections(&help_after(command));
    page += &see_also(command, tool);
    page
}

fn subcommands(tool: &Command) -> impl Iterator<Item = &Command> {
    tool.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set())
}

/// The page's name: `net-latency-top`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// How it is called, a line for each way.
fn usage(command: &Command) -> Vec<String> {
    let usage = command.clone().term_width(0).render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines();
    lines.map(|line| line.trim().to_owned()).collect()
}

/// What each subcommand does, in a line.
fn commands(tool: &Command) -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for command in subcommands(tool) {
        roff.control("TP", []);
        roff.text([bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))]);
        roff.text([roman(command.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
    roff.to_roff()
}

/// The other pages.
fn see_also(command: &Command, tool: &Command) -> String {
    let pages = iter::once(tool).chain(subcommands(tool));
    let others: Vec<_> = pages.map(name).filter(|other| *other != name(command)).collect();
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let last = others.len().saturating_sub(1);
    for (number, other) in others.into_iter().enumerate() {
        roff.text([bold(other), roman(if number == last { "(1)" } else { "(1)," })]);
    }
    roff.to_roff()
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
    use clap::Arg;
    use insta::assert_snapshot;

    use super::*;

    fn text(page: &[u8]) -> String {
        std::str::from_utf8(page).expect("a page is text").replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }

    #[test]
    fn each_subcommand_has_its_page() {
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
            .subcommands([view, Command::new("top").about("Show a table")]);
        let pages = pages(tool.clone());
        let whole: Vec<_> = pages.iter().map(|(name, page)| format!("# {name}\n{}", text(page))).collect();
        assert_snapshot!(whole.join("\n"));
        let check = page_of(tool.clone(), Some("check")).expect("there");
        assert_eq!(check.as_bytes(), pages[1].1);
        let unknown = page_of(tool, Some("chek")).expect_err("not there");
        assert_eq!(unknown, "there is no subcommand chek; there are check, top");
    }

    #[test]
    fn every_option_is_on_its_page() {
        let mut tool = crate::cli::command();
        let pages = pages(tool.clone());
        tool.build();
        assert_eq!(pages.len(), 1 + subcommands(&tool).count());
        for (command, (name, page)) in iter::once(&tool).chain(subcommands(&tool)).zip(&pages) {
            let page = text(page).replace("\\-", "-");
            let shown = command.get_arguments().filter(|option| !option.is_hide_set());
            for option in shown.filter_map(Arg::get_long) {
                assert!(page.contains(&format!("--{option}")), "--{option} in {name}");
            }
            for (other, _) in pages.iter().filter(|(other, _)| other != name) {
                let other = other.trim_end_matches(".1");
                assert!(page.contains(&format!("\\fB{other}\\fR(1)")), "{other} in {name}");
            }
        }
    }
}
