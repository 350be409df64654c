//! Packets whose skb another one takes the place of on the way: a clone or a copy has another address than the skb that was stamped.
//! Lines show the packet's own times, or none where its stamp can't be known; never those of a packet that had the address before.
//!
//! Each message is sent alone, and the sender's own clock says when, so that whatever a line says of it has to lie between the
//! call that sent it and the one that had the answer. Between the messages go pings, and datagrams to a closed port: their skbs
//! leave stamps behind that no line takes.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use chrono::Utc;

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{Dir, Line, Proto},
    net::{
        Hook, Path, Version, destination_nat, forget_rules, queue_port,
        tap::{self, Manner, Tap, Taps},
        verdicts::{self, Verdicts},
    },
    oracle::by_bytes,
    peers::{
        CLIENT, Pair, Peer, SERVER,
        alone::{Span, parse_log},
    },
    tool::{Outcome, Scratch},
};

pub(crate) const THEME: Theme = Theme {
    name: "copies",
    arguments: &[],
    scenarios: &[
        Scenario { name: "tap_tcp_veth_v4", play: || tap_tcp(Path::veth(Version::V4)?, Manner::Slow, 0) },
        Scenario { name: "tap_tcp_veth_v6", play: || tap_tcp(Path::veth(Version::V6)?, Manner::Keeps, 5) },
        Scenario { name: "tap_tcp_cards_v4", play: || tap_tcp_cards(Version::V4, Manner::Slow, 20) },
        Scenario { name: "tap_tcp_cards_v6", play: || tap_tcp_cards(Version::V6, Manner::Filters, 0) },
        Scenario { name: "tap_udp_veth_v4", play: || tap_udp(Path::veth(Version::V4)?, Manner::Slow, 5) },
        Scenario { name: "tap_udp_veth_v6", play: || tap_udp(Path::veth(Version::V6)?, Manner::Filters, 20) },
        Scenario { name: "tap_udp_cards_v4", play: || tap_udp_cards(Version::V4, Manner::Keeps, 0) },
        Scenario { name: "tap_udp_cards_v6", play: || tap_udp_cards(Version::V6, Manner::Slow, 5) },
        Scenario { name: "tap_many", play: tap_many },
        Scenario { name: "tap_fragments_v4", play: || tap_fragments(Version::V4) },
        Scenario { name: "tap_fragments_v6", play: || tap_fragments(Version::V6) },
        Scenario { name: "queue_whole", play: || queue_tcp(Path::veth(Version::V4)?, WHOLE) },
        Scenario { name: "queue_segmented", play: || queue_tcp(Path::veth(Version::V4)?, SEGMENTED) },
        Scenario { name: "queue_merged", play: queue_merged },
        Scenario { name: "queue_cards", play: queue_cards },
        Scenario { name: "queue_udp", play: || queue_udp(0) },
        Scenario { name: "queue_udp_longer", play: || queue_udp(GROWTH) },
        Scenario { name: "xdp_veth_v4", play: || xdp(Path::veth(Version::V4)?, LEN, false) },
        Scenario { name: "xdp_veth_v6", play: || xdp(Path::veth(Version::V6)?, LEN, true) },
        Scenario { name: "xdp_frags_veth", play: || xdp(Path::veth(Version::V4)?, LONG, true) },
        Scenario { name: "xdp_frags_merged", play: xdp_merged },
        Scenario { name: "xdp_frags_cards", play: xdp_cards },
        Scenario { name: "xdp_jumbo", play: xdp_jumbo },
        Scenario { name: "tap_all_tcp", play: tap_all_tcp },
        Scenario { name: "tap_all_udp", play: tap_all_udp },
        Scenario { name: "flooded", play: flooded },
        Scenario { name: "mirrored", play: mirrored },
        Scenario { name: "doubled", play: doubled },
        Scenario { name: "tap_vlan", play: tap_vlan },
        Scenario { name: "tap_translated", play: tap_translated },
        Scenario { name: "tap_defragments", play: tap_defragments },
    ],
};

/// Packets that are queued on their way out, in a run of their own: its footer says which have no line.
pub(crate) const OUT: Theme = Theme {
    name: "copies_out",
    arguments: &[],
    scenarios: &[
        Scenario { name: "local_out_whole", play: || queue_out(Hook::Out, WHOLE) },
        Scenario { name: "local_out_segmented", play: || queue_out(Hook::Out, SEGMENTED) },
        Scenario { name: "postrouting_whole", play: || queue_out(Hook::PostRouting, WHOLE) },
        Scenario { name: "postrouting_segmented", play: || queue_out(Hook::PostRouting, SEGMENTED) },
        Scenario { name: "local_out_alone", play: || queue_out_alone(Hook::Out) },
        Scenario { name: "postrouting_alone", play: || queue_out_alone(Hook::PostRouting) },
    ],
};

/// Messages of a scenario.
const ROUNDS: u32 = 60;
const LEN: u32 = 200;
/// Of a message that is several segments.
const LONG: u32 = 32 * 1024;
const LONG_ROUNDS: u32 = 30;
/// The clock of the lines' ends is that of the messages, at most so far off (see `clock.rs`).
const CLOCK_ERROR_NS: i64 = 100_000;

/// The number of each netfilter queue here: every one is in a namespace of its own.
const QUEUE: u16 = 7;
/// One packet in N waits for its verdict.
const EVERY: u64 = 16;
const DELAY: Duration = Duration::from_millis(20);
const WHOLE: verdicts::Manner =
    verdicts::Manner { takes_whole: true, every: EVERY, delay: DELAY, grows_by: 0 };
const SEGMENTED: verdicts::Manner = verdicts::Manner { takes_whole: false, ..WHOLE };
/// More than any skb of such a datagram has room for at its end.
const GROWTH: usize = 4000;

/// Which lines have to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// All, but for one in a hundred.
    All,
    /// Times of sent packets, which nothing comes between.
    Out,
    /// None: it is enough that known times are right.
    None,
}

/// Messages that were sent alone and answered.
struct Messages {
    client: SocketAddr,
    server: SocketAddr,
    /// The server's address as the client knows it.
    called: SocketAddr,
    spans: Vec<Span>,
    /// Bytes of a message, or of the first of datagrams, each of which has one more.
    len: u32,
    /// By how much what arrives at the server, and its answer, is longer.
    growth: u32,
}

impl Messages {
    /// Sends them by TCP.
    fn ask(pair: &mut Pair, rounds: u32, len: u32, gap_ms: u32, has_strays: bool) -> Result<Self> {
        let log = Scratch::new("alone");
        pair.server.tell(&format!("serve {rounds} {len} 0"))?;
        pair.client.ask(&format!("alone {} {}", path_of(&log)?, plan(rounds, len, gap_ms, has_strays)))?;
        pair.server.answer()?;
        Ok(Self {
            client: pair.near,
            server: pair.far,
            called: pair.far,
            spans: spans(&log)?,
            len,
            growth: 0,
        })
    }

    /// Sends them as datagrams, which a queue may make longer on their way to the server.
    fn ask_by_datagrams(two: &mut Two, rounds: u32, len: u32, gap_ms: u32, growth: u32) -> Result<Self> {
        let log = Scratch::new("alone");
        two.server.tell(&format!("udp echo {rounds}"))?;
        let plan = plan(rounds, len, gap_ms, true);
        two.client.ask(&format!("udp alone {} {} {plan}", path_of(&log)?, two.to))?;
        two.server.answer()?;
        Ok(Self { client: two.from, server: two.to, called: two.to, spans: spans(&log)?, len, growth })
    }

    /// The lines of each way, with what it is: requests out and in, replies out and in.
    fn ways<'a>(&self, evidence: &'a Evidence<'_>, proto: Proto) -> [(&'static str, Dir, Vec<&'a Line>); 4] {
        let way = |what, dir, from, to| {
            let wanted = |line: &&Line| {
                line.dir == dir && line.proto == proto && line.is_between(from, to) && line.len > 0
            };
            // Sent again: its first copy may be what arrived, and its last one may go when all is over.
            let lines = evidence.lines.iter().filter(|line| wanted(line) && !line.is("retrans"));
            (what, dir, lines.collect())
        };
        [
            way("requests out", Dir::Out, self.client, self.called),
            way("requests in", Dir::In, self.client, self.server),
            way("replies out", Dir::Out, self.server, self.client),
            way("replies in", Dir::In, self.called, self.client),
        ]
    }

    /// That no line of TCP shows a time that is not its message's, and that no byte has two lines.
    fn check_tcp(&self, evidence: &Evidence<'_>, known: Known) -> Result<()> {
        let ways = self.ways(evidence, Proto::Tcp);
        for pair in ways.chunks(2) {
            // Both ends have the same bytes, and one of them has the first.
            let both: Vec<Line> =
                pair.iter().flat_map(|(_, _, lines)| lines).map(|line| (*line).clone()).collect();
            let first = by_bytes(&both).first().context("no line")?.seq;
            for (what, dir, lines) in pair {
                let number = |line: &Line| {
                    let offset = line.seq.wrapping_sub(first);
                    let last = offset.wrapping_add(line.len - 1) / self.len;
                    Some(offset / self.len).filter(|number| *number == last)
                };
                self.check_lines(evidence.outcome, what, lines, number)?;
                let mut covered: Vec<_> =
                    lines.iter().map(|line| (line.seq.wrapping_sub(first), line)).collect();
                covered.sort_by_key(|(offset, _)| *offset);
                for two in covered.windows(2) {
                    ensure!(
                        two[0].0 + two[0].1.len <= two[1].0,
                        evidence
                            .outcome
                            .fault(format_args!("{what}: a byte has two lines"), [*two[0].1, *two[1].1])
                    );
                }
                self.expect_known(evidence.outcome, what, *dir, lines, known)?;
            }
        }
        Ok(())
    }

    /// [`Self::check_tcp`] for datagrams, of which each has a line at both ends.
    fn check_udp(&self, evidence: &Evidence<'_>, known: Known) -> Result<()> {
        for (way, (what, dir, lines)) in self.ways(evidence, Proto::Udp).iter().enumerate() {
            let len = if way == 0 { self.len } else { self.len + self.growth };
            self.check_lines(evidence.outcome, what, lines, |line| line.len.checked_sub(len))?;
            let all = self.spans.len() as u64;
            evidence.outcome.expect_all(what, lines.len() as u64, all, lines.iter().copied())?;
            self.expect_known(evidence.outcome, what, *dir, lines, known)?;
        }
        Ok(())
    }

    /// That each line's times are those of its message.
    fn check_lines(
        &self,
        outcome: &Outcome,
        what: &str,
        lines: &[&Line],
        number: impl Fn(&Line) -> Option<u32>,
    ) -> Result<()> {
        let unknown = lines.iter().filter(|line| line.stages.contains(&None)).count();
        let mut wrong = Vec::new();
        for line in lines {
            wrong.extend(self.why_wrong(line, number(line))?.map(|why| (why, *line)));
        }
        let (count, all) = (wrong.len(), lines.len());
        println!("{what}: of {all} lines {count} are wrong, and {unknown} have an unknown stage");
        let Some((why, _)) = wrong.first() else { return Ok(()) };
        let what = format!("{what}: {count} of {all} lines are wrong; {why}");
        Err(outcome.fault(what, wrong.iter().map(|(_, line)| *line)))
    }

    /// Why what a line says does not lie within the time in which its message was sent and answered.
    fn why_wrong(&self, line: &Line, number: Option<u32>) -> Result<Option<String>> {
        let span = number.and_then(|number| self.spans.get(number as usize));
        let Some((start, end)) = span else { return Ok(Some("its bytes are of no message".to_owned())) };
        let sum: Option<u64> = line.stages.iter().copied().sum();
        if sum.is_some() && line.total != sum {
            return Ok(Some("its total is not the sum of its stages".to_owned()));
        }
        let known = i64::try_from(line.stages.iter().flatten().sum::<u64>())?;
        let over = line.ts.timestamp_nanos_opt().context("a time beyond all bounds")?;
        let (early, late) = (start - (over - known), over - end);
        let is_right = early <= CLOCK_ERROR_NS && late <= CLOCK_ERROR_NS;
        let took = end - start;
        Ok((!is_right).then(|| {
            format!("the first, of a message of {took} ns, begins {early} ns before that, and ends {} ns before its answer was there", -late)
        }))
    }

    fn expect_known(
        &self,
        outcome: &Outcome,
        what: &str,
        dir: Dir,
        lines: &[&Line],
        known: Known,
    ) -> Result<()> {
        let unknown: Vec<_> = lines.iter().copied().filter(|line| line.stages.contains(&None)).collect();
        let has_to_be = match known {
            Known::All => true,
            Known::Out => dir == Dir::Out,
            Known::None => false,
        };
        let most = lines.len() as u64 / 100 + outcome.allowance().most(lines.len() as u64);
        ensure!(
            !has_to_be || unknown.len() as u64 <= most,
            outcome.fault(
                format_args!("{what}: {} of {} lines lack a stage; {most} may", unknown.len(), lines.len()),
                unknown
            )
        );
        Ok(())
    }
}

fn path_of(log: &Scratch) -> Result<&str> {
    log.path().to_str().context("a path that is not UTF-8")
}

fn plan(rounds: u32, len: u32, gap_ms: u32, has_strays: bool) -> String {
    format!("{rounds} {len} {gap_ms} {}", if has_strays { "strays" } else { "nothing" })
}

fn spans(log: &Scratch) -> Result<Vec<Span>> {
    parse_log(&fs::read_to_string(log.path())?)
}

/// Two ends with a UDP socket each.
struct Two {
    client: Peer,
    server: Peer,
    from: SocketAddr,
    to: SocketAddr,
}

impl Two {
    fn new(path: &Path) -> Result<Self> {
        let (near, far) = path.addresses();
        let (mut client, mut server) =
            (path.near(|| Peer::spawn(CLIENT))?, path.far(|| Peer::spawn(SERVER))?);
        let from = SocketAddr::new(near, client.ask(&format!("udp bind {near}"))?.try_into()?);
        let to = SocketAddr::new(far, server.ask(&format!("udp bind {far}"))?.try_into()?);
        Ok(Self { client, server, from, to })
    }
}

fn version(path: &Path) -> Version {
    if path.addresses().0.is_ipv4() { Version::V4 } else { Version::V6 }
}

/// A packet socket of IP's protocol is behind IP in the list of receivers of that device's packets (`ptype_specific`), so that the skb has
/// two users when IP has it: `ip_rcv_core` (IPv6: `ip6_rcv_core`) goes on with a clone (`skb_share_check`), and the skb that was stamped
/// stays with the packet socket. All stages are known: IP's function returns the skb that goes on.
fn tap_tcp(path: Path, manner: Manner, gap_ms: u32) -> Result<Check> {
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::Ip(version(&path)), manner)?;
    tapped(&mut pair, taps, gap_ms, Known::All)
}

/// [`tap_tcp`] behind a card's driver, which hands skbs up in lists (`ip_list_rcv`, where `ip_rcv_core` is called as well).
fn tap_tcp_cards(version: Version, manner: Manner, gap_ms: u32) -> Result<Check> {
    let path = Path::cards(version)?;
    tap_tcp(path, manner, gap_ms)
}

fn tapped(pair: &mut Pair, taps: Vec<Tap>, gap_ms: u32, known: Known) -> Result<Check> {
    let messages = Messages::ask(pair, ROUNDS, LEN, gap_ms, true)?;
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, known)))
}

/// As of TCP: UDP has the clone as well, and queues it.
fn tap_udp(path: Path, manner: Manner, gap_ms: u32) -> Result<Check> {
    let mut two = Two::new(&path)?;
    let taps = path.tap(Taps::Ip(version(&path)), manner)?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, gap_ms, 0)?;
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_udp(evidence, Known::All)))
}

fn tap_udp_cards(version: Version, manner: Manner, gap_ms: u32) -> Result<Check> {
    let path = Path::cards(version)?;
    tap_udp(path, manner, gap_ms)
}

/// 10,000 packets without a pause, so that addresses come again at once.
fn tap_many() -> Result<Check> {
    const MANY: u32 = 2_500;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::Ip(Version::V4), Manner::Slow)?;
    let messages = Messages::ask(&mut pair, MANY, LEN, 0, false)?;
    tap::finish(taps, MANY)?;
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, Known::All)))
}

/// Each fragment is cloned as above before IP puts them together (`ip_defrag`, `ipv6_frag_rcv`), where one of them, by which a datagram
/// goes on, gets the others. Known times are right.
fn tap_fragments(version: Version) -> Result<Check> {
    const LEN: u32 = 4000;
    let path = Path::veth(version)?;
    let mut two = Two::new(&path)?;
    let taps = path.tap(Taps::Ip(version), Manner::Slow)?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, 0, 0)?;
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_udp(evidence, Known::Out)))
}

/// A queue in front of the server's TCP: a program's verdict lets each packet go on (`nf_reinject`), another task's softirq then being at
/// work. With its flag the skb is the same; without it `nfqnl_enqueue_packet` makes one for each segment (`skb_gso_segment`), none of which
/// driver or IP have seen. Known times are right then.
fn queue_tcp(path: Path, manner: verdicts::Manner) -> Result<Check> {
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port();
    let verdicts = path.far(|| {
        let verdicts = Verdicts::start(QUEUE, manner)?;
        queue_port(Hook::In, port, QUEUE)?;
        Ok(verdicts)
    })?;
    let messages = Messages::ask(&mut pair, LONG_ROUNDS, LONG, 0, true)?;
    path.far(forget_rules)?;
    let judged = verdicts.finish()?;
    ensure!(judged >= LONG_ROUNDS.into(), "only {judged} packets were queued");
    let known = if manner.takes_whole { Known::All } else { Known::Out };
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, known)))
}

/// [`queue_tcp`] with packets that GRO has merged, which a veth link does since Linux 5.13; before, single segments come.
fn queue_merged() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    path.merge()?;
    queue_tcp(path, SEGMENTED)
}

fn queue_cards() -> Result<Check> {
    let path = Path::cards(Version::V4)?;
    queue_tcp(path, SEGMENTED)
}

/// A queue in front of the server's UDP. The skb is the same, so that all is known; but where the verdict brings more bytes than the skb
/// has room for, `nfqnl_mangle` makes another one (`skb_copy_expand`). Known times are right then.
fn queue_udp(growth: usize) -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut two = Two::new(&path)?;
    let port = two.to.port();
    let manner = verdicts::Manner { grows_by: growth, ..WHOLE };
    let verdicts = path.far(|| {
        let verdicts = Verdicts::start(QUEUE, manner)?;
        queue_port(Hook::In, port, QUEUE)?;
        Ok(verdicts)
    })?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, 0, growth.try_into()?)?;
    let judged = verdicts.finish()?;
    ensure!(judged == u64::from(ROUNDS), "{judged} datagrams were queued");
    let known = if growth == 0 { Known::All } else { Known::Out };
    Ok(Box::new(move |evidence| messages.check_udp(evidence, known)))
}

/// A program of generic XDP gets an skb that is not a clone, and that has room in front. One that takes no frags gets it in one piece too,
/// with another buffer, but it is the same skb (`netif_receive_generic_xdp`): all is known. For one that takes frags Linux makes another
/// skb since 6.9 (`skb_pp_cow_data`), behind the driver's stamp and in front of IP's. Known times are right then.
fn xdp(path: Path, len: u32, takes_frags: bool) -> Result<Check> {
    let takes_frags = path.generic_xdp(takes_frags)?;
    let mut pair = Pair::connect(&path)?;
    let rounds = if len == LEN { ROUNDS } else { LONG_ROUNDS };
    let messages = Messages::ask(&mut pair, rounds, len, 0, true)?;
    path.without_xdp()?;
    let known = if takes_frags { Known::Out } else { Known::All };
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, known)))
}

/// [`xdp`] with packets that GRO has merged before, as far as it does for such a program.
fn xdp_merged() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    path.merge()?;
    xdp(path, LONG, true)
}

fn xdp_cards() -> Result<Check> {
    let path = Path::cards(Version::V4)?;
    xdp(path, LONG, true)
}

/// [`xdp`] with datagrams that are longer than a page, so that their skbs are not linear.
fn xdp_jumbo() -> Result<Check> {
    const MTU: u32 = 9000;
    const LEN: u32 = 8000;
    let path = Path::veth(Version::V4)?;
    path.set_mtu(MTU)?;
    let takes_frags = path.generic_xdp(true)?;
    let mut two = Two::new(&path)?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, 0, 0)?;
    let known = if takes_frags { Known::Out } else { Known::All };
    Ok(Box::new(move |evidence| messages.check_udp(evidence, known)))
}

/// A packet socket of all protocols, as tcpdump has it, gets its packets first and clones them itself (`packet_rcv`): IP goes on with the skb
/// that was stamped.
fn tap_all_tcp() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::All, Manner::Slow)?;
    tapped(&mut pair, taps, 0, Known::All)
}

fn tap_all_udp() -> Result<Check> {
    let path = Path::veth(Version::V6)?;
    let mut two = Two::new(&path)?;
    let taps = path.tap(Taps::All, Manner::Keeps)?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, 0, 0)?;
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_udp(evidence, Known::All)))
}

/// A bridge that floods clones for all ports but the last (`br_flood`), and the device behind each port stamps what it receives, here beside
/// a packet socket of IP's.
fn flooded() -> Result<Check> {
    let path = Path::bridge(Version::V4)?;
    path.flood()?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::Ip(Version::V4), Manner::Slow)?;
    tapped(&mut pair, taps, 0, Known::All)
}

/// A copy goes to another device (`tcf_mirred_act` clones it), where it is stamped and belongs to no one; the skb itself goes on to IP,
/// which clones it for a packet socket.
fn mirrored() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    path.mirror()?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::Ip(Version::V4), Manner::Slow)?;
    tapped(&mut pair, taps, 0, Known::All)
}

/// Each request comes twice (`netem_enqueue` clones it), and each copy is cloned again. Of which of them the stamps are may be unknown, where
/// the second one comes before the first is read.
fn doubled() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    path.duplicate()?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap(Taps::Ip(Version::V4), Manner::Slow)?;
    tapped(&mut pair, taps, 0, Known::Out)
}

/// A packet socket bound to a VLAN's device: the skb comes to that in a second round (`vlan_do_receive`), and IP clones it then.
fn tap_vlan() -> Result<Check> {
    let path = Path::vlan(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let taps = path.tap_upper(Taps::Ip(Version::V4), Manner::Slow)?;
    tapped(&mut pair, taps, 0, Known::All)
}

/// A router that translates addresses, and that tcpdump watches: the clone shares the buffer, so that netfilter gives the skb another one
/// before it writes the address (`skb_ensure_writable`). The skb's address stays, its buffer's does not.
fn tap_translated() -> Result<Check> {
    const APPARENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
    let path = Path::routers(Version::V4, 1)?;
    let IpAddr::V4(real) = path.addresses().1 else { anyhow::bail!("not IPv4") };
    path.between(|| destination_nat(APPARENT, real))?;
    let mut pair = Pair::connect_by(&path, APPARENT.into())?;
    let taps = path.tap_between(Taps::All, Manner::Slow)?;
    let messages = Messages::ask(&mut pair, ROUNDS, LEN, 0, true)?;
    let messages = Messages { called: SocketAddr::new(APPARENT.into(), pair.far.port()), ..messages };
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, Known::All)))
}

/// Packet sockets that put fragments together for themselves (`ip_check_defrag`, with clones), before IP does so with its own.
fn tap_defragments() -> Result<Check> {
    const LEN: u32 = 4000;
    let path = Path::veth(Version::V4)?;
    let mut two = Two::new(&path)?;
    let taps = path.tap(Taps::Ip(Version::V4), Manner::Defragments)?;
    let messages = Messages::ask_by_datagrams(&mut two, ROUNDS, LEN, 0, 0)?;
    tap::finish(taps, ROUNDS)?;
    Ok(Box::new(move |evidence| messages.check_udp(evidence, Known::Out)))
}

/// A queue behind the client's TCP, which has sent much more by the time of each verdict: `nf_reinject` goes on to the device without
/// the socket's lock, with the clone that TCP made or, without the flag, with an skb for each segment (`skb_gso_segment`).
/// All bytes go out. They have lines, or the footer has a reason why not; what lines say of times is right, and nothing is said to be dropped.
fn queue_out(hook: Hook, manner: verdicts::Manner) -> Result<Check> {
    const BYTES: u64 = 1_200_000;
    /// Of a packet.
    const LONGEST: u64 = 1 << 16;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port();
    // So that all delays together are shorter than TCP's timer.
    let manner = verdicts::Manner { every: 128, ..manner };
    let verdicts = path.near(|| {
        let verdicts = Verdicts::start(QUEUE, manner)?;
        queue_port(hook, port, QUEUE)?;
        Ok(verdicts)
    })?;
    let start = Utc::now();
    pair.server.tell(&format!("read {BYTES} 65536 0"))?;
    pair.client.ask(&format!("write {BYTES}"))?;
    pair.server.answer()?;
    pair.client.ask("acked")?;
    path.near(forget_rules)?;
    let judged = verdicts.finish()?;
    ensure!(judged > 1, "only {judged} packets were queued");
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let wanted = |line: &&Line| {
            line.dir == Dir::Out && pair.is_request(line) && line.len > 0 && !line.is("retrans")
        };
        let lines: Vec<Line> = evidence.lines.iter().filter(wanted).cloned().collect();
        for line in &lines {
            let known: u64 = line.stages.iter().flatten().sum();
            let age = (line.ts.to_utc() - start).num_nanoseconds().context("an endless run")?;
            ensure!(
                i64::try_from(known)? <= age + CLOCK_ERROR_NS,
                outcome.fault(format_args!("{age} ns after the first byte was written"), [line])
            );
        }
        let sent: u64 = lines.iter().map(|line| u64::from(line.len)).sum();
        println!("{} lines with {sent} bytes, for {judged} packets that were queued", lines.len());
        let twice = by_bytes(&lines).windows(2).any(|two| {
            let end = two[0].seq.wrapping_add(two[0].len);
            end.wrapping_sub(two[1].seq).cast_signed() > 0
        });
        ensure!(sent <= BYTES && !twice, outcome.fault(format_args!("{sent} bytes, or one twice"), &lines));
        // What else has no line is a packet for which the footer has a reason.
        let footer = outcome.footer()?;
        let losses = footer["losses"].as_object().context("no losses")?;
        let reasons = losses.iter().filter(|(name, _)| *name != "never_queued");
        let counted: u64 = reasons.filter_map(|(_, count)| count.as_u64()).sum();
        let skipped = outcome.allowance().most(judged) * BYTES / judged;
        ensure!(
            BYTES - sent <= counted * LONGEST + skipped,
            outcome.fault(
                format_args!("{sent} bytes of {BYTES} have a line, {counted} packets a reason"),
                &lines
            )
        );
        let dropped = outcome.figure("losses.never_queued")?;
        ensure!(
            dropped <= outcome.allowance().most(judged),
            outcome
                .fault(format_args!("{dropped} packets are said to have been dropped, and all arrived"), [])
        );
        Ok(())
    }))
}

/// A queue at the sender, with messages that are sent alone: each line's times are known to lie between two calls.
fn queue_out_alone(hook: Hook) -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port();
    let verdicts = path.near(|| {
        let verdicts = Verdicts::start(QUEUE, SEGMENTED)?;
        queue_port(hook, port, QUEUE)?;
        Ok(verdicts)
    })?;
    let messages = Messages::ask(&mut pair, LONG_ROUNDS, LONG, 0, true)?;
    path.near(forget_rules)?;
    let judged = verdicts.finish()?;
    ensure!(judged > LONG_ROUNDS.into(), "only {judged} packets were queued");
    Ok(Box::new(move |evidence| messages.check_tcp(evidence, Known::None)))
}
