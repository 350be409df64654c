//! What tracing has cost.

use std::{io, time::Duration};

/// In a shorter run, a share only says how it started and ended.
const SHORT: Duration = Duration::from_secs(1);

/// What a trace has cost while all was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// CPU time of this process.
    pub own: Duration,
    /// The time in which it was taken. A run begins a little later: capabilities are given up first.
    pub elapsed: Duration,
    /// Bytes of memory that this process has of its own, at the end.
    pub resident_bytes: u64,
    /// CPU time of the programs in the kernel, where it keeps statistics of them.
    pub programs: Option<Duration>,
}

impl Cost {
    /// Writes one line: shares of one CPU, or times where a run was too short for shares, and the programs' time for each of `packets`.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write(&self, packets: u64, out: &mut impl io::Write) -> io::Result<()> {
        let part = |time: Duration| {
            if self.elapsed < SHORT {
                return format!("{} ms", time.as_millis());
            }
            format!("{:.1} %", 100.0 * time.as_secs_f64() / self.elapsed.as_secs_f64())
        };
        write!(out, "  cost: {} of a CPU, {} MiB", part(self.own), self.resident_bytes >> 20)?;
        if let Some(time) = self.programs {
            write!(out, "; in the kernel {}", part(time))?;
            if packets > 0 {
                write!(out, ", {} ns a packet", time.as_nanos() / u128::from(packets))?;
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cost: &Cost, packets: u64) -> String {
        let mut out = Vec::new();
        cost.write(packets, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn shares_are_of_one_cpu() {
        let cost = Cost {
            own: Duration::from_millis(314),
            elapsed: Duration::from_secs(10),
            resident_bytes: 19_000_000,
            programs: None,
        };
        assert_eq!(text(&cost, 1000), "  cost: 3.1 % of a CPU, 18 MiB\n");
        let cost = Cost { programs: Some(Duration::from_millis(1200)), ..cost };
        assert_eq!(
            text(&cost, 1_000_000),
            "  cost: 3.1 % of a CPU, 18 MiB; in the kernel 12.0 %, 1200 ns a packet\n"
        );
        assert_eq!(text(&cost, 0), "  cost: 3.1 % of a CPU, 18 MiB; in the kernel 12.0 %\n");
        let short = Cost { own: Duration::from_millis(30), elapsed: Duration::from_millis(29), ..cost };
        assert_eq!(text(&short, 0), "  cost: 30 ms of a CPU, 18 MiB; in the kernel 1200 ms\n");
    }
}
