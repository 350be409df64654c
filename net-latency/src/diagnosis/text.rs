//! The verdict to read.

use std::io::Write as _;

use super::{
    model::Processes,
    verdict::{Finding, Seen, Unsure, Verdict, Who},
};
use crate::{accounting::Human, escape::write_name, packet::stages::dir};

/// Appends it.
pub(crate) fn write(verdict: &Verdict, out: &mut Vec<u8>) {
    let Verdict { findings, normal, unsure, seen } = verdict;
    write_head(findings, seen, out);
    for (number, finding) in findings.iter().enumerate() {
        write_finding(number + 1, finding, out);
    }
    if seen.stalls > 0 {
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
    write_notes(seen, out);
}

fn write_head(findings: &[Finding], seen: &Seen, out: &mut Vec<u8>) {
    let faults = findings.iter().filter(|finding| finding.is_fault()).count();
    let what = match faults {
        0 => format!("nothing wrong found{}", seen.limits()),
        faults => counted(faults as u64, "cause") + " found",
    };
    let [packets_in, packets_out] = seen.packets;
    line(
        out,
        format_args!(
            "{what}: {packets_in} packets in, {packets_out} out, {} in {}",
            counted(seen.services as u64, "service"),
            Human(seen.elapsed_ns)
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
    if !seen.is_fine && seen.packets.iter().sum::<u64>() > 0 {
        line(out, format_args!("\nThe log has no fine stages: record with --stages fine to know more."));
    }
    if seen.refused > 0 {
        let packets = counted(seen.refused, "packet");
        line(
            out,
            format_args!("\n{packets} not judged, of more services than there is room for: a filter helps."),
        );
    }
    if seen.forgotten > 0 {
        let packets = counted(seen.forgotten, "packet");
        line(
            out,
            format_args!(
                "\n{packets} of connections that were forgotten, of more than there is room for: a filter helps."
            ),
        );
    }
    if let Some(lost) = seen.lost.filter(|lost| *lost > 0) {
        let packets = counted(lost, "packet");
        line(out, format_args!("\n{packets} not seen: a filter, or a larger --buffer, helps."));
    }
}

fn write_who(who: &Who, out: &mut Vec<u8>) {
    match who.processes {
        Processes::Unknown => out.extend_from_slice(b"unknown process"),
        Processes::One(pid) => {
            write_name(who.process.as_deref(), out);
            write!(out, ", PID {pid}").expect("memory can be written");
        }
        Processes::Several => {
            write_name(who.process.as_deref(), out);
            out.extend_from_slice(b", several processes");
        }
    }
    let (protocol, port) = (who.protocol.name(), who.port);
    write!(out, ", {protocol} port {port}, {}", dir(who.direction)).expect("memory can be written");
}

pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("memory can be written");
}
