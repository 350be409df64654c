//! What a thread does to answer a request, from the end of its read to its call to write: `--stages fine`.
//!
//! Each socket keeps its last reader, and how long that thread had been off its CPUs, and asleep, by then ([`crate::readers`] adds that
//! up). The same thread's next call to write on that socket is an answer's beginning. Where another thread calls, it is unknown what was
//! done between the two.
//!
//! A socket of TCP keeps it in its own entry, one of UDP in a table.

use net_latency_common::{Served, Unknown, is_client};

use crate::{
    bpf::entry::{Field, Own},
    flow::{addresses::SPREAD, settings::setting},
    kernel::{
        memory::{Memory, number},
        socket::Socket,
        task::Task,
    },
    readers::{self, Serving},
};

/// The reader of a socket's last request, while that has no answer.
#[repr(C)]
pub(crate) struct Asked {
    /// Process and thread id; 0 for none, [`UNSEEN`] for one that was not seen all the time since.
    reader: Field<u64>,
    from: Field<Serving>,
}

/// No thread has these ids.
const UNSEEN: u64 = u64::MAX;

impl Asked {
    /// The current thread has read from the socket at `at`, or else the kernel has by itself. A client by these ports serves no request.
    #[inline(always)]
    pub(crate) fn read(&self, at: u64, is_by_thread: bool, local: u16, remote: u16) {
        if is_client(local, remote, setting!(ephemeral_ports)) {
            return;
        }
        let before = if self.reader.get() == Task::current_ids() { self.from.get().at } else { 0 };
        let serving = if is_by_thread { readers::serves(at, before) } else { None };
        match serving {
            Some(serving) => {
                self.from.set(serving);
                self.reader.set(Task::current_ids());
            }
            None => self.reader.set(UNSEEN),
        }
    }

    /// The current thread begins to write to the socket at `at`: what it did for that, if a request was read since the last write.
    #[inline(always)]
    pub(crate) fn answer(&self, at: u64) -> Served {
        let reader = self.reader.get();
        if reader == 0 {
            return Served::NONE;
        }
        self.reader.set(0);
        if reader == UNSEEN {
            return Served::unknown(Unknown::ReaderUnseen);
        }
        if reader != Task::current_ids() {
            return Served::unknown(Unknown::OtherThread);
        }
        readers::served(self.from.get(), at)
    }
}

/// Slots of [`ASKED`], as a power of two.
const SLOT_BITS: u32 = 10;

/// [`Asked`] for a socket of UDP.
#[repr(C)]
struct AskedByUdp {
    /// Its address, and its port: another one may have that address.
    socket: Field<u64>,
    port: Field<u64>,
    asked: Asked,
}

/// Sockets of UDP from which requests were read, by a hash of the address. When a slot is taken, the newer one stands: of the other
/// socket's answer nothing is known.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static ASKED: Own<AskedByUdp, { 1 << SLOT_BITS }> = unsafe { Own::zeroed() };

#[inline(always)]
fn slot(socket: u64) -> &'static AskedByUdp {
    // SAFETY: an entry of a table, mapped while a program runs; what changes is fields.
    unsafe { &*ASKED.at(socket.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS)) }
}

/// The current thread has taken a datagram from the socket at `at` that came from `remote` for `local`.
#[inline(always)]
pub(crate) fn took_datagram<M: Memory>(socket: Socket<M>, at: u64, local: u16, remote: u16) {
    let socket = number(socket.address());
    let slot = slot(socket);
    if slot.socket.get() != socket || slot.port.get() != u64::from(local) {
        slot.asked.reader.set(0);
        slot.socket.set(socket);
        slot.port.set(local.into());
    }
    slot.asked.read(at, true, local, remote);
}

/// The current thread calls at `at` to send a datagram: as [`Asked::answer`].
#[inline(always)]
pub(crate) fn sends_datagram<M: Memory>(socket: Socket<M>, at: u64) -> Served {
    let slot = slot(number(socket.address()));
    let is_its =
        slot.socket.get() == number(socket.address()) && slot.port.get() == socket.local_port().into();
    if is_its { slot.asked.answer(at) } else { Served::NONE }
}

#[cfg(test)]
mod tests {
    use net_latency_common::{Offsets, part};

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::{memory::Probed, task::Thread},
    };

    const SERVER: (u16, u16) = (80, 50_000);
    const NANOSLEEP: u32 = 35;
    const READ: u32 = 0;
    /// Another thread that has its place among readers.
    const RIVAL: u32 = THREAD + 8192;
    const THREAD: u32 = 100;
    const OTHER: u32 = 101;

    /// Two threads, and one that takes the first one's place; none has been seen.
    struct Threads(usize);

    impl Threads {
        fn new() -> Self {
            Machine::reset();
            let slab = memory::slab(64);
            Machine::with(|machine| {
                machine.settings.fine = 1;
                machine.settings.ephemeral_ports = 32_768 | 60_999 << 16;
                machine.offsets = Offsets {
                    task_struct_pid: 8,
                    task_struct_tgid: 12,
                    task_struct_flags: 16,
                    task_struct_of_32_bits: 20,
                    task_struct_stack: 24,
                    stack_registers: 32,
                    pt_regs_call: 8,
                    ..Offsets::default()
                };
            });
            Self(slab)
        }

        /// A thread with this id, in this system call.
        fn thread(&self, id: u32, call: u32) -> Thread<Probed> {
            let task = memory::take(self.0);
            memory::write(task + 8, id);
            memory::write(task + 12, 100_u32);
            memory::write(task + 16, 0_u32);
            memory::write(task + 20, 0_u32);
            memory::write(task + 24, task);
            memory::write(task + 40, call);
            Thread::new(task as *const u8)
        }

        /// The thread is off its CPU for so long, and is woken after `asleep`, if it sleeps.
        fn is_off(&self, id: u32, call: u32, ns: u64, asleep: Option<u64>) {
            let (thread, idle) = (self.thread(id, call), self.thread(0, 0));
            readers::switched(thread, idle).unwrap();
            let after = |ns: u64| Machine::with(|machine| machine.clock += ns);
            after(asleep.unwrap_or(0));
            if asleep.is_some() {
                readers::woken(thread).unwrap();
            }
            after(ns - asleep.unwrap_or(0));
            readers::switched(idle, thread).unwrap();
        }
    }

    /// That thread runs.
    fn runs(id: u32) {
        Machine::with(|machine| machine.ids = 100 << 32 | u64::from(id));
    }

    fn now() -> u64 {
        crate::bpf::now()
    }

    fn nobody() -> Asked {
        // SAFETY: numbers only, for which 0 is a value.
        unsafe { core::mem::zeroed() }
    }

    /// It calls to read, and has read.
    fn reads(asked: &Asked, id: u32) {
        runs(id);
        readers::asks().unwrap();
        asked.read(now(), true, SERVER.0, SERVER.1);
    }

    fn unknown(served: Served) -> Option<Unknown> {
        part(served.all).err()
    }

    #[test]
    fn what_a_thread_did_is_all_of_the_time() {
        let (threads, asked) = (Threads::new(), nobody());
        reads(&asked, THREAD);
        let from = asked.from.get().at;
        threads.is_off(THREAD, NANOSLEEP, 5_000, Some(4_000));
        threads.is_off(THREAD, READ, 700, None);
        threads.is_off(THREAD, READ, 1_500, Some(1_000));
        Machine::with(|machine| machine.clock += 300);
        let at = now();
        let served = asked.answer(at);
        assert_eq!(served.all, at - from);
        // Each look at the clock takes 1 ns.
        let [asleep, waited, on_cpu] = [served.asleep, served.waited, served.on_cpu().unwrap()];
        assert!((5_000..5_010).contains(&asleep), "{served:?}");
        assert!((2_200..2_220).contains(&waited), "{served:?}");
        assert!((300..320).contains(&on_cpu), "{served:?}");
        assert_eq!(served.call, u64::from(NANOSLEEP) + 1);
        // The rest of the answer is no beginning of one.
        assert_eq!(asked.answer(now()), Served::NONE);
    }

    #[test]
    fn the_call_that_is_told_has_half_of_the_sleep() {
        for (times, call) in [([400, 300, 200], NANOSLEEP + 1), ([400, 500, 0], READ + 1), ([300, 310, 0], 0)]
        {
            let (threads, asked) = (Threads::new(), nobody());
            reads(&asked, THREAD);
            let calls = [NANOSLEEP, READ, NANOSLEEP].into_iter().chain((call == 0).then_some(7));
            for (call, ns) in calls.zip(times.into_iter().chain([250])) {
                threads.is_off(THREAD, call, ns + 10, (ns > 0).then_some(ns));
            }
            assert_eq!(asked.answer(now()).call, u64::from(call), "{times:?}");
        }
    }

    /// By a table with room for some: of two sockets with one place, the one that was read last has it.
    #[test]
    fn what_is_done_for_a_datagram_is_of_its_own_socket() {
        let (threads, sockets) = (Threads::new(), memory::slab(64));
        runs(THREAD);
        readers::asks().unwrap();
        let socket = |address: u64| Socket::<Probed>::new(address as *const u8);
        let place = |address: u64| address.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS);
        let first = memory::take(sockets);
        let several = |_| {
            let slab = memory::slab(64);
            (0..256).map(move |_| memory::take(slab))
        };
        let others: std::vec::Vec<_> = (0..16).flat_map(several).collect();
        let in_its_place = |other: &&u64| place(**other) == place(first);
        let second = *others.iter().find(in_its_place).unwrap();
        let third = *others.iter().find(|other| !in_its_place(other)).unwrap();
        let has_port = |address: u64, port: u16| memory::write(address, u32::from(port) << 16);
        for address in [first, second, third] {
            has_port(address, SERVER.0);
        }
        let takes = |address| {
            took_datagram(socket(address), now(), SERVER.0, SERVER.1);
            threads.is_off(THREAD, NANOSLEEP, 500, Some(400));
        };
        let sends = |address| (400..500).contains(&sends_datagram(socket(address), now()).asleep);
        takes(first);
        assert_eq!([second, third, first, first].map(sends), [false, false, true, false]);
        takes(first);
        takes(third);
        assert_eq!([third, first].map(sends), [true, false], "it did both at a time");
        takes(first);
        takes(second);
        assert_eq!([first, second].map(sends), [false, true]);
        // Nor has another one at its address.
        takes(first);
        has_port(first, 81);
        assert!(!sends(first));
        // Nor does what a call saw of the one before count.
        took_datagram(socket(first), now(), SERVER.1, SERVER.0);
        assert_eq!([first, second].map(sends), [false; 2]);
    }

    #[test]
    fn one_that_asks_others_serves_nobody() {
        let (_threads, asked) = (Threads::new(), nobody());
        runs(THREAD);
        readers::asks().unwrap();
        asked.read(now(), true, SERVER.1, SERVER.0);
        assert_eq!(asked.answer(now()), Served::NONE);
    }

    #[test]
    fn the_call_is_of_the_request_that_was_read_first() {
        let (threads, first, second) = (Threads::new(), nobody(), nobody());
        reads(&first, THREAD);
        threads.is_off(THREAD, NANOSLEEP, 500, Some(400));
        reads(&second, THREAD);
        threads.is_off(THREAD, NANOSLEEP, 500, Some(400));
        let calls = [&second, &first].map(|asked| asked.answer(now()).call);
        assert_eq!(calls, [0, u64::from(NANOSLEEP) + 1]);
        // It reads twice before it answers: the second read counts.
        for _ in 0..2 {
            reads(&first, THREAD);
            threads.is_off(THREAD, READ, 50, Some(40));
        }
        let served = first.answer(now());
        assert!(served.call == u64::from(READ) + 1 && (40..50).contains(&served.asleep), "{served:?}");
        // One that was never answered does not keep that of others for ever.
        reads(&second, THREAD);
        Machine::with(|machine| machine.clock += 11_000_000_000);
        reads(&first, THREAD);
        threads.is_off(THREAD, NANOSLEEP, 500, Some(400));
        assert_eq!(first.answer(now()).call, u64::from(NANOSLEEP) + 1);
    }

    #[test]
    fn who_was_not_seen_all_the_time_has_no_times() {
        let (threads, asked) = (Threads::new(), nobody());
        reads(&asked, THREAD);
        runs(OTHER);
        assert_eq!(unknown(asked.answer(now())), Some(Unknown::OtherThread));
        // The kernel has read by itself.
        asked.read(now(), false, SERVER.0, SERVER.1);
        assert_eq!(unknown(asked.answer(now())), Some(Unknown::ReaderUnseen));
        // Its place was another one's meanwhile, and is so still.
        for is_back in [false, true] {
            reads(&asked, THREAD);
            runs(RIVAL);
            readers::asks().unwrap();
            runs(THREAD);
            if is_back {
                readers::asks().unwrap();
            }
            assert_eq!(unknown(asked.answer(now())), Some(Unknown::ReaderUnseen), "{is_back}");
        }
        // It has gone, and another one has its id.
        reads(&asked, THREAD);
        readers::exited(threads.thread(THREAD, READ));
        readers::born(threads.thread(THREAD, READ));
        assert_eq!(unknown(asked.answer(now())), Some(Unknown::ReaderUnseen));
        // Its return to a CPU was not seen.
        reads(&asked, THREAD);
        readers::switched(threads.thread(THREAD, READ), threads.thread(0, 0)).unwrap();
        assert_eq!(unknown(asked.answer(now())), Some(Unknown::ReaderUnseen));
    }

    #[test]
    fn who_has_lost_its_place_and_reads_again_is_seen() {
        let (threads, first, second) = (Threads::new(), nobody(), nobody());
        reads(&first, THREAD);
        runs(RIVAL);
        readers::asks().unwrap();
        reads(&second, THREAD);
        reads(&first, THREAD);
        // The request that is answered is one less, and the other one is still there.
        assert_eq!(second.answer(now()).asleep, 0);
        threads.is_off(THREAD, NANOSLEEP, 500, Some(400));
        let served = first.answer(now());
        assert!((400..410).contains(&served.asleep) && served.waited >= 100, "{served:?}");
    }

    #[test]
    fn a_number_that_is_no_call_is_none() {
        let threads = Threads::new();
        let call = |thread: Thread<Probed>| thread.system_call();
        assert_eq!(call(threads.thread(THREAD, NANOSLEEP)), u64::from(NANOSLEEP) + 1);
        assert_eq!(call(threads.thread(THREAD, u32::MAX)), 0);
        let task = memory::take(threads.0);
        for (flags, of_32_bits, number) in [(0, 0, 1), (0x0020_0000, 0, 0), (0, 2, 0)] {
            memory::write(task + 16, flags);
            memory::write(task + 20, of_32_bits);
            memory::write(task + 24, task);
            memory::write(task + 40, 0_u32);
            assert_eq!(call(Thread::new(task as *const u8)), number);
        }
        Machine::with(|machine| machine.offsets.task_struct_stack = 0);
        assert_eq!(call(threads.thread(THREAD, NANOSLEEP)), 0);
    }
}
