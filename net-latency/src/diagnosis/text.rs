//! The verdict to read.

use std::io::Write as _;

use super::{
    finding::{Finding, Normal, Seen, ServiceAnswers, Unsure, Verdict, Who},
    headline,
    service::Processes,
    words,
};
use crate::{accounting::Human, escape::write_name, message::counted, packet::stages::dir};

/// Findings that the first lines tell, and the details that follow unless all are wanted.
const FIRST: usize = 3;

/// The slow services, by how much and why, in a line each; or that nothing is slow.
pub(crate) fn first_lines(verdict: &Verdict) -> Vec<String> {
    let first: Vec<_> = verdict.findings.iter().take(FIRST).map(headline::first_line).collect();
    if first.is_empty() { vec![nothing(verdict)] } else { first }
}

/// Why there are no findings.
fn nothing(verdict: &Verdict) -> String {
    let Verdict { normal, unsure, seen, .. } = verdict;
    match (seen.packets, normal.is_empty() && !unsure.is_empty()) {
        ([0, 0], _) => "no packets were seen".to_owned(),
        (_, true) => format!("too few packets to say whether anything is slow{}", seen.limits()),
        (_, false) => format!("nothing is slow{}", seen.limits()),
    }
}

/// Appends it: a line for each slow service, then the evidence. `is_all`: each finding, and normal times.
pub(crate) fn write(verdict: &Verdict, is_all: bool, out: &mut Vec<u8>) {
    let Verdict { findings, answers, normal, unsure, seen } = verdict;
    let shown = if is_all { findings.len() } else { findings.len().min(FIRST) };
    for text in first_lines(verdict) {
        line(out, format_args!("{text}"));
    }
    for (number, finding) in findings.iter().enumerate().take(shown) {
        write_finding(number + 1, finding, out);
    }
    if findings.len() > shown {
        let more = counted(findings.len() - shown, "cause");
        line(out, format_args!("\n{more} more: --all"));
    }
    // Now and then that is so on any machine.
    if seen.stalls > 0 && (is_all || seen.stalls * 10 >= seen.windows) {
        line(
            out,
            format_args!(
                "\nIn {} of {} windows of {} all services were slow at the same time: that is the machine or its host.",
                seen.stalls,
                seen.windows,
                Human(seen.window_ns)
            ),
        );
    }
    let left = seen.services.saturating_sub(headline::judged(verdict));
    if !is_all && findings.is_empty() && left > 0 {
        line(out, format_args!("\nNot judged: {}: --all says why", counted(left, "service")));
    }
    if is_all {
        write_answers(answers, out);
        write_rest(normal, unsure, out);
    }
    write_seen(seen, out);
    write_notes(seen, out);
}

/// What answers take, and the parts of that.
fn write_answers(answers: &[ServiceAnswers], out: &mut Vec<u8>) {
    if !answers.is_empty() {
        line(out, format_args!("\nAnswers, on average:"));
    }
    for service in answers {
        out.extend_from_slice(b"  ");
        write_process(service.process.as_deref(), service.processes, out);
        let (protocol, port) = (service.protocol.name(), service.port);
        let answers = counted(service.count, "answer");
        let sent = if service.is_client { "received" } else { "sent" };
        write!(out, ", {protocol} port {port}, {answers} {sent}").expect("memory can be written");
        if service.count > 0 {
            write!(out, ": {}", words::parts(service)).expect("memory can be written");
        }
        if service.unknown > 0 {
            write!(out, "; {} more of unknown time", service.unknown).expect("memory can be written");
        }
        out.push(b'\n');
    }
}

fn write_rest(normal: &[Normal], unsure: &[Unsure], out: &mut Vec<u8>) {
    if !normal.is_empty() {
        line(out, format_args!("\nNormal:"));
    }
    for side in normal {
        out.extend_from_slice(b"  ");
        write_who(&side.who, out);
        write!(out, ": ").expect("memory can be written");
        if let (Some(p50), Some(p99)) = (side.p50_ns, side.p99_ns) {
            write!(out, "p50 {}, p99 {}, ", Human(p50), Human(p99)).expect("memory can be written");
        }
        write!(out, "{}", counted(side.packets, "packet")).expect("memory can be written");
        if let Some(remark) = &side.remark {
            write!(out, "; {remark}").expect("memory can be written");
        }
        out.push(b'\n');
    }
    if !unsure.is_empty() {
        line(out, format_args!("\nNot judged:"));
    }
    for Unsure { who, reason, .. } in unsure {
        out.extend_from_slice(b"  ");
        write_who(who, out);
        line(out, format_args!(": {reason}"));
    }
}

/// On what it rests.
fn write_seen(seen: &Seen, out: &mut Vec<u8>) {
    let [packets_in, packets_out] = seen.packets;
    line(
        out,
        format_args!(
            "\n{} in, {packets_out} out, {} in {}; slow is {} or longer",
            counted(packets_in, "packet"),
            counted(seen.services, "service"),
            Human(seen.elapsed_ns),
            Human(seen.threshold_ns)
        ),
    );
}

fn write_finding(number: usize, finding: &Finding, out: &mut Vec<u8>) {
    write!(out, "\n{number}. ").expect("memory can be written");
    match &finding.who {
        Some(who) => write_who(who, out),
        None => out.extend_from_slice(b"this machine"),
    }
    line(out, format_args!(": {}", finding.sentence));
    let mut facts = vec![finding.cause.name().to_owned()];
    if let Some(also) = headline::also(finding) {
        line(out, format_args!("   the same: {also}"));
    }
    let times = finding.p50_ns.zip(finding.p99_ns);
    let times = times.map(|(p50, p99)| format!("p50 {}, p99 {}", Human(p50), Human(p99)));
    match (finding.stage, times) {
        (Some(stage), Some(times)) => facts.push(format!("{stage} {times}")),
        (_, times) => facts.extend(times),
    }
    facts.extend(finding.share.map(|share| format!("{share} % of the time")));
    facts.push(format!("confidence {}", finding.confidence.name()));
    line(out, format_args!("   {}", facts.join(", ")));
    for evidence in &finding.evidence {
        line(out, format_args!("   - {evidence}"));
    }
    line(out, format_args!("   next: {}", finding.next));
}

/// What limits all of it.
fn write_notes(seen: &Seen, out: &mut Vec<u8>) {
    if !seen.missing.is_empty() {
        line(out, format_args!("\nNot known on this machine: {}.", seen.missing.join(", ")));
    }
    if !seen.is_fine && seen.packets.iter().sum::<u64>() > 0 {
        line(out, format_args!("\nThe log has no fine stages: record with --stages fine to know more."));
    }
    if seen.refused > 0 {
        let packets = counted(seen.refused, "packet");
        line(
            out,
            format_args!(
                "\n{packets} not judged: there are more services than fit the table; a filter helps."
            ),
        );
    }
    if seen.forgotten > 0 {
        let packets = counted(seen.forgotten, "packet");
        line(out, format_args!("\n{packets} of connections that no longer fit the table: a filter helps."));
    }
    if let Some(lost) = seen.lost.filter(|lost| *lost > 0) {
        let packets = counted(lost, "packet");
        line(out, format_args!("\n{packets} not seen: a filter, or a larger --buffer, helps."));
    }
}

fn write_who(who: &Who, out: &mut Vec<u8>) {
    write_process(who.process.as_deref(), who.processes, out);
    let (protocol, port) = (who.protocol.name(), who.port);
    write!(out, ", {protocol} port {port}, {}", dir(who.direction)).expect("memory can be written");
}

fn write_process(name: Option<&[u8]>, processes: Processes, out: &mut Vec<u8>) {
    match processes {
        Processes::Unknown => out.extend_from_slice(b"unknown process"),
        Processes::One(pid) => {
            write_name(name, out);
            write!(out, ", PID {pid}").expect("memory can be written");
        }
        Processes::Several => {
            write_name(name, out);
            out.extend_from_slice(b", several processes");
        }
    }
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("memory can be written");
}
