//! Processes that come and go, and which of them a filter wants. From kernel/fork.c (`copy_process`, `kernel_clone`), kernel/exit.c
//! (`do_exit`, `release_task`) and fs/exec.c (`de_thread`) of Linux 6.1.

use std::vec::Vec;

use net_latency_common::{PID_ALONE, PID_WITH_CHILDREN, PIDS_IN_SET};

use super::{
    choice::Choice,
    reader_truth::What,
    truth::Hook,
    world::{Task, World, note},
};
use crate::{
    bpf::host::Machine,
    flow::{names, processes},
    kernel::{memory::Probed, task::Thread},
    readers,
};

/// Something that happens to tasks. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A task makes another one: a thread of its process or a process, which may get a number that is free again.
    Fork { task: u8, thread: bool, reuses: bool },
    /// A task exits.
    Exit { task: u8 },
    /// A process that has exited gives its number back (`release_task`).
    Release { which: u8 },
    /// A task is gone for good, a grace period later.
    Free { which: u8 },
    /// The last thread of a process whose leader has exited executes a program, and takes its place (`de_thread`).
    Execute,
    /// A task takes another name, which ends with this digit.
    Rename { task: u8, digit: u8 },
}

impl Step {
    pub(super) fn draw(choice: &mut Choice) -> Self {
        match choice.below(14) {
            0..=3 => Self::Fork {
                task: choice.below(4) as u8,
                thread: choice.one_in(3),
                reuses: !choice.one_in(4),
            },
            4..=6 => Self::Exit { task: choice.below(4) as u8 },
            7 | 8 => Self::Release { which: choice.below(4) as u8 },
            9 | 10 => Self::Free { which: choice.below(4) as u8 },
            11 => Self::Execute,
            _ => Self::Rename { task: choice.below(4) as u8, digit: choice.below(3) as u8 },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        let simpler = match self {
            Self::Fork { task, thread, reuses } => [
                Self::Fork { task: 0, thread, reuses },
                Self::Fork { task, thread: false, reuses },
                Self::Fork { task, thread, reuses: false },
            ]
            .to_vec(),
            Self::Exit { .. } => [Self::Exit { task: 0 }].to_vec(),
            Self::Release { .. } => [Self::Release { which: 0 }].to_vec(),
            Self::Free { .. } => [Self::Free { which: 0 }].to_vec(),
            Self::Rename { digit, .. } => [Self::Rename { task: 0, digit }].to_vec(),
            Self::Execute => Vec::new(),
        };
        simpler.into_iter().filter(|other| *other != self).collect()
    }
}

/// Which of the first three processes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Off,
    /// This one, by its number alone.
    One(u8),
    /// Each by its state in the set, 0 for those that are not.
    Set([u64; 3]),
    /// Those whose name ends with this digit, or that of their process.
    Named(u8),
}

impl Filter {
    pub(super) fn draw(choice: &mut Choice) -> Self {
        match choice.below(7) {
            0 => Self::One(choice.below(3) as u8),
            1 => Self::Set([PID_ALONE, 0, 0]),
            2 => Self::Set([PID_WITH_CHILDREN, 0, PID_ALONE]),
            3 => Self::Named(choice.below(3) as u8),
            _ => Self::Off,
        }
    }
}

/// How far a task has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Exited,
    Released,
    Gone,
}

struct Member {
    state: State,
    process: usize,
    is_leader: bool,
}

struct Process {
    number: u32,
    start: u64,
    signal: u64,
    leader: usize,
    wanted: u64,
}

/// All tasks, by their places among the world's, and processes.
pub(super) struct Processes {
    filter: Filter,
    members: Vec<Member>,
    processes: Vec<Process>,
    free_numbers: Vec<u32>,
    next_number: u32,
    next_start: u64,
}

impl Processes {
    /// The first three, and what is wanted of them.
    pub(super) fn new(world: &mut World, filter: Filter) -> Self {
        let mut new = Self {
            filter,
            members: Vec::new(),
            processes: Vec::new(),
            free_numbers: Vec::new(),
            next_number: 2000,
            next_start: 5000,
        };
        let numbers = world.tasks.iter().map(|task| (task.ids >> 32) as u32).collect::<Vec<_>>();
        for (place, number) in numbers.into_iter().enumerate() {
            let wanted = match filter {
                Filter::Off | Filter::Named(_) => 0,
                Filter::One(one) => u64::from(usize::from(one) == place),
                Filter::Set(states) => states[place],
            };
            let address = world.tasks[place].address;
            new.processes.push(Process {
                number,
                start: world.get(address, world.offsets.task_struct_start_time),
                signal: world.get(address, world.offsets.task_struct_signal),
                leader: place,
                wanted,
            });
            new.members.push(Member { state: State::Runs, process: place, is_leader: true });
            if matches!(filter, Filter::Set(_)) && wanted != 0 {
                processes::want(number, wanted);
            }
        }
        let (pid, names) = match filter {
            Filter::Off => (0, 0),
            Filter::One(one) => (new.processes[usize::from(one)].number, 0),
            Filter::Set(_) => (PIDS_IN_SET, 0),
            Filter::Named(_) => (0, 1),
        };
        Machine::with(|machine| {
            machine.settings.filter_task = u32::from(filter != Filter::Off);
            (machine.settings.filter_pid, machine.settings.filter_comm) = (pid, names);
        });
        if let Filter::Named(digit) = filter {
            names::want_last(b'0' + digit);
        }
        new.tell(world);
        new
    }

    /// The world knows which tasks the filter wants, and which one a softirq interrupts.
    fn tell(&self, world: &mut World) {
        let wanted = |(place, member): (usize, &Member)| match self.filter {
            Filter::Off => true,
            Filter::Named(digit) => {
                let leader = self.processes[member.process].leader;
                [place, leader].iter().any(|place| world.name_of(*place).contains(&(b'0' + digit)))
            }
            Filter::One(_) | Filter::Set(_) => self.processes[member.process].wanted != 0,
        };
        world.wanted = self.members.iter().enumerate().map(wanted).collect();
        world.interrupted = self.running(2);
    }

    /// A task that runs.
    pub(super) fn running(&self, which: u8) -> usize {
        let all = || (0..self.members.len()).filter(|place| self.members[*place].state == State::Runs);
        all().nth(usize::from(which) % all().count()).expect("one always runs")
    }

    fn nth(&self, which: u8, is_it: impl Fn(&Member) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.members.len()).filter(|place| is_it(&self.members[*place])).collect();
        if all.is_empty() { None } else { Some(all[usize::from(which) % all.len()]) }
    }

    /// `is_busy` says which tasks are in a call.
    pub(super) fn step(&mut self, world: &mut World, step: Step, is_busy: impl Fn(usize) -> bool) {
        match step {
            Step::Fork { task, thread, reuses } => self.fork(world, self.running(task), thread, reuses),
            Step::Exit { task } => {
                let place = self.running(task);
                let count = self.members.iter().filter(|member| member.state == State::Runs).count();
                if count > 1 && !is_busy(place) {
                    self.exit(world, place);
                }
            }
            Step::Release { which } => {
                let is_it =
                    |member: &Member| member.state == State::Exited && self.lives(member.process) == 0;
                if let Some(place) = self.nth(which, is_it) {
                    self.members[place].state = State::Released;
                    let number = self.processes[self.members[place].process].number;
                    note!(world, "  the number {number} is free");
                    self.free_numbers.push(number);
                }
            }
            Step::Free { which } => {
                if let Some(place) = self.nth(which, |member| member.state == State::Released) {
                    self.free(world, place);
                }
            }
            Step::Execute => self.execute(world),
            Step::Rename { task, digit } => {
                let place = self.running(task);
                world.rename(world.tasks[place].address, digit);
                note!(world, "  task {place} is task{digit}");
            }
        }
        self.tell(world);
    }

    /// Threads of a process that run.
    fn lives(&self, process: usize) -> usize {
        let is_its = |member: &&Member| member.process == process && member.state == State::Runs;
        self.members.iter().filter(is_its).count()
    }

    fn fork(&mut self, world: &mut World, parent: usize, is_thread: bool, reuses: bool) {
        const MOST: usize = 40;
        if self.members.len() >= MOST {
            return;
        }
        world.run_as(Some(parent));
        let mine = self.members[parent].process;
        let number = if reuses && !is_thread { self.free_numbers.pop() } else { None };
        let id = number.unwrap_or(self.next_number);
        self.next_number += u32::from(number.is_none());
        let (process, start) = if is_thread {
            (mine, self.processes[mine].start + 1)
        } else {
            self.next_start += 10;
            (self.processes.len(), self.next_start)
        };
        let place = self.members.len();
        self.members.push(Member { state: State::Runs, process, is_leader: !is_thread });
        let address = if is_thread {
            let Process { number, leader, signal, .. } = self.processes[mine];
            let leader = world.tasks[leader].address;
            world.new_task([number, id], start, Some((leader, signal)))
        } else {
            world.new_task([id; 2], start, None)
        };
        let signal: u64 = world.get(address, world.offsets.task_struct_signal);
        if is_thread {
            let live: u32 = world.get(signal, world.offsets.signal_struct_live);
            world.put(signal, world.offsets.signal_struct_live, live + 1);
        }
        let group = if is_thread { self.processes[mine].number } else { id };
        world.tasks.push(Task { address, ids: u64::from(group) << 32 | u64::from(id) });
        let child = Thread::<Probed>::new(address as *const u8);
        let call = world.call(Hook::Other, place, || {
            readers::born(child);
            processes::started(child)
        });
        world.truth.scheduled.note(id, What::Born, call);
        let is_lost = world.truth.calls[call].result.is_some();
        if !is_thread {
            let inherits = self.processes[mine].wanted == PID_WITH_CHILDREN && !is_lost;
            let wanted = if inherits { PID_WITH_CHILDREN } else { 0 };
            self.processes.push(Process { number: id, start, signal, leader: place, wanted });
        }
        note!(world, "  task {place} of process {process}: {group}/{id}");
    }

    /// `do_exit`.
    fn exit(&mut self, world: &mut World, place: usize) {
        world.run_as(Some(place));
        let Process { signal, .. } = self.processes[self.members[place].process];
        let live: u32 = world.get(signal, world.offsets.signal_struct_live);
        world.put(signal, world.offsets.signal_struct_live, live - 1);
        let task = Thread::<Probed>::new(world.tasks[place].address as *const u8);
        let call = world.call(Hook::Other, place, || {
            processes::exited(task);
            readers::exited(task);
            Ok(())
        });
        world.truth.scheduled.note(world.tasks[place].ids as u32, What::Exited, call);
        note!(world, "  task {place} exits");
        // Others than the leader are released at once.
        self.members[place].state =
            if self.members[place].is_leader { State::Exited } else { State::Released };
    }

    /// `delayed_put_task_struct`.
    fn free(&mut self, world: &mut World, place: usize) {
        let address = world.tasks[place].address;
        let member = &mut self.members[place];
        // A leader is freed after its threads: they refer to it.
        let process = member.process;
        let is_leader = member.is_leader;
        let others = self.members.iter().enumerate().any(|(other, member)| {
            other != place && member.process == process && member.state != State::Gone
        });
        if is_leader && others {
            return;
        }
        self.members[place].state = State::Gone;
        world.run_as(None);
        let task = Thread::<Probed>::new(address as *const u8);
        world.call(Hook::Other, place, || {
            processes::freed(task);
            Ok(())
        });
        note!(world, "  task {place} is gone");
        let number = self.processes[process].number;
        let is_used = self.processes.iter().filter(|process| process.number == number).count() > 1;
        assert!(!is_leader || is_used || !processes::has_entry(number), "{number} is unused, but kept");
        let signal = is_leader.then_some(self.processes[process].signal);
        world.free_task(address, signal);
    }

    fn execute(&mut self, world: &mut World) {
        let is_it = |place: &usize| {
            let member = &self.members[*place];
            let leader = self.processes[member.process].leader;
            member.state == State::Runs
                && !member.is_leader
                && self.lives(member.process) == 1
                && self.members[leader].state == State::Exited
        };
        let Some(place) = (0..self.members.len()).find(is_it) else { return };
        let process = &mut self.processes[self.members[place].process];
        let leader = std::mem::replace(&mut process.leader, place);
        let offsets = world.offsets;
        let (new, old) = (world.tasks[place].address, world.tasks[leader].address);
        let id = world.tasks[place].ids as u32;
        // `exchange_tids`, and the leader belongs to the thread's group.
        world.put(new, offsets.task_struct_pid, process.number);
        world.put(old, offsets.task_struct_pid, id);
        world.put(new, offsets.task_struct_start_time, process.start);
        world.put(new, offsets.task_struct_group_leader, new);
        world.put(old, offsets.task_struct_group_leader, new);
        world.tasks[place].ids = u64::from(process.number) << 32 | u64::from(process.number);
        self.members[place].is_leader = true;
        self.members[leader].is_leader = false;
        self.members[leader].state = State::Released;
        for (other, member) in self.members.iter().enumerate() {
            if member.process == self.members[place].process && member.state == State::Released {
                world.put(world.tasks[other].address, offsets.task_struct_group_leader, new);
            }
        }
        note!(world, "  task {place} takes the place of task {leader}");
    }
}
