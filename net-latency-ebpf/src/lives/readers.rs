//! Threads that read, with `--stages fine`: when each calls, is woken and gets a CPU. From net/ipv4/tcp.c (`tcp_recvmsg`), net/core/sock.c (`sk_wait_data`) and kernel/sched/core.c (`try_to_wake_up`, `__schedule`) of Linux 6.1.

use std::vec::Vec;

use super::{
    choice::Choice,
    journeys::About,
    processes::Processes,
    reader_truth::What,
    truth::Hook,
    world::{Task, World, hook},
};
use crate::{
    bpf::host::{CPUS, Machine},
    journey::schedule,
    kernel::{
        memory::{Memory, Probed},
        task::Thread,
    },
    readers,
};

/// `PF_KTHREAD`.
const KERNEL: u32 = 0x0020_0000;

/// Something that the scheduler does. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A task is woken.
    Wake { task: u8 },
    /// It gets a CPU.
    Switch { cpu: u8, task: u8, from: From },
    /// A thread of the kernel's takes the CPU from it.
    Displace { cpu: u8, task: u8 },
}

/// What had the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Task(u8),
    Kernel,
    Idle,
}

impl Step {
    pub(super) fn draw(choice: &mut Choice) -> Self {
        let (cpu, task) = (choice.below(2) as u8, choice.below(4) as u8);
        match choice.below(8) {
            0..=2 => Self::Wake { task },
            3..=6 => {
                let from = [From::Task(choice.below(4) as u8), From::Kernel, From::Idle];
                Self::Switch { cpu, task, from: choice.of(&from) }
            }
            _ => Self::Displace { cpu, task },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        let all = match self {
            Self::Wake { .. } => [Self::Wake { task: 0 }].to_vec(),
            Self::Switch { cpu, task, from } => [
                Self::Switch { cpu: 0, task, from },
                Self::Switch { cpu, task: 0, from },
                Self::Switch { cpu, task, from: From::Idle },
            ]
            .to_vec(),
            Self::Displace { cpu, task } => {
                [Self::Displace { cpu: 0, task }, Self::Displace { cpu, task: 0 }].to_vec()
            }
        };
        all.into_iter().filter(|other| *other != self).collect()
    }
}

/// The kernel's own threads: one, and the idle task.
pub(super) struct OfKernel {
    thread: Task,
    idle: Task,
}

fn hooked<M: Memory>(task: Task) -> Thread<M> {
    Thread::new(task.address as *const u8)
}

impl OfKernel {
    pub(super) fn new(world: &World) -> Self {
        let [thread, idle] = [77_u32, 0].map(|id| {
            let address = world.new_task([id; 2], 1, None);
            world.put(address, world.offsets.task_struct_flags, KERNEL);
            Task { address, ids: u64::from(id) << 32 | u64::from(id) }
        });
        Self { thread, idle }
    }

    pub(super) fn step(&self, world: &mut World, step: Step, processes: &Processes) {
        let task = |number: u8| processes.running(number);
        match step {
            Step::Wake { task: number } => {
                let woken = world.tasks[task(number)];
                let call = hook!(world, Hook::Other, task(number), readers::woken(hooked(woken)));
                let thread = woken.ids as u32;
                world.truth.scheduled.note(thread, What::Woken, call);
                world.journey(About::Woken(thread), || schedule::waking::<Probed>(hooked(woken)));
            }
            Step::Switch { cpu, task: number, from } => {
                let before = match from {
                    From::Task(number) => world.tasks[task(number)],
                    From::Kernel => self.thread,
                    From::Idle => self.idle,
                };
                let next = world.tasks[task(number)];
                let cpu = on(cpu);
                let call =
                    hook!(world, Hook::Other, task(number), readers::switched(hooked(before), hooked(next)));
                world.truth.scheduled.loses(cpu, before.ids, call);
                let thread = next.ids as u32;
                world.truth.scheduled.note(thread, What::Running { cpu }, call);
                world.journey(About::Running(thread), || schedule::switched::<Probed>(hooked(next)));
            }
            Step::Displace { cpu, task: number } => {
                let before = world.tasks[task(number)];
                let cpu = on(cpu);
                let next = self.thread;
                let call =
                    hook!(world, Hook::Other, task(number), readers::switched(hooked(before), hooked(next)));
                world.truth.scheduled.loses(cpu, before.ids, call);
                let about = About::Running(next.ids as u32);
                world.journey(about, || schedule::switched::<Probed>(hooked(next)));
            }
        }
    }
}

fn on(cpu: u8) -> usize {
    let cpu = usize::from(cpu) % CPUS;
    Machine::with(|machine| machine.cpu = cpu);
    cpu
}

/// Whether there are fine stages.
pub(super) fn is_fine() -> bool {
    Machine::with(|machine| machine.settings.fine != 0)
}

/// A task calls to receive (`tcp_recvmsg`, `udp_recvmsg`).
pub(super) fn ask(world: &mut World, task: usize) {
    world.run_as(Some(task));
    if !is_fine() {
        return;
    }
    let call = world.call(Hook::Other, task, readers::asks);
    world.truth.asks(call);
}
