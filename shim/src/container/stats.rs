//! Statistics: the container's own from the sandbox where it knows them, the rest from the host's cgroup, in the type
//! that the host's cgroup version asks for.

use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use protobuf::MessageField;
use protobuf::well_known_types::any::Any;
use thaw_runsc::control::{Event, Stats};

use super::{Container, Phase};
use crate::cgroup::{Cgroup, host_is_v2, keyed, number};
use crate::pod::Limits;
use crate::publisher::pack;
use crate::status::{Result, TaskError};

/// One reading; also the last one, taken when the container ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    v2: bool,
    /// Nanoseconds.
    cpu_total: u64,
    cpu_user: u64,
    cpu_system: u64,
    throttled: Throttled,
    memory: u64,
    memory_max: u64,
    memory_limit: u64,
    memory_failures: u64,
    cache: u64,
    rss: u64,
    kernel: u64,
    swap: u64,
    inactive_file: u64,
    page_faults: u64,
    major_faults: u64,
    pids: u64,
    pids_limit: u64,
    oom_kills: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Throttled {
    periods: u64,
    throttled_periods: u64,
    nanoseconds: u64,
}

impl Sample {
    pub(super) fn oom_kills(&self) -> u64 {
        self.oom_kills
    }

    fn of_cgroup(cgroup: &Cgroup) -> Sample {
        let mut sample = Sample::default();
        match cgroup {
            Cgroup::V1 {
                cpu,
                cpuacct,
                memory,
                pids,
            } => {
                if let Some(dir) = cpu {
                    let get = |key| keyed(dir, "cpu.stat", key).unwrap_or(0);
                    sample.throttled = Throttled {
                        periods: get("nr_periods"),
                        throttled_periods: get("nr_throttled"),
                        nanoseconds: get("throttled_time"),
                    };
                }
                if let Some(dir) = cpuacct {
                    sample.cpu_total = number(dir, "cpuacct.usage").unwrap_or(0);
                    sample.cpu_user = number(dir, "cpuacct.usage_user").unwrap_or(0);
                    sample.cpu_system = number(dir, "cpuacct.usage_sys").unwrap_or(0);
                }
                if let Some(dir) = memory {
                    let get = |file| number(dir, file).unwrap_or(0);
                    let stat = |key| keyed(dir, "memory.stat", key).unwrap_or(0);
                    sample.memory = get("memory.usage_in_bytes");
                    sample.memory_max = get("memory.max_usage_in_bytes");
                    sample.memory_limit = get("memory.limit_in_bytes");
                    sample.memory_failures = get("memory.failcnt");
                    sample.cache = stat("total_cache");
                    sample.rss = stat("total_rss");
                    sample.kernel = get("memory.kmem.usage_in_bytes");
                    sample.swap = stat("total_swap");
                    sample.inactive_file = stat("total_inactive_file");
                    sample.page_faults = stat("total_pgfault");
                    sample.major_faults = stat("total_pgmajfault");
                }
                if let Some(dir) = pids {
                    sample.pids = number(dir, "pids.current").unwrap_or(0);
                    sample.pids_limit = number(dir, "pids.max").unwrap_or(0);
                }
            }
            Cgroup::V2(dir) => {
                let cpu = |key| keyed(dir, "cpu.stat", key).unwrap_or(0);
                let stat = |key| keyed(dir, "memory.stat", key).unwrap_or(0);
                sample.cpu_total = cpu("usage_usec").saturating_mul(1000);
                sample.cpu_user = cpu("user_usec").saturating_mul(1000);
                sample.cpu_system = cpu("system_usec").saturating_mul(1000);
                sample.throttled = Throttled {
                    periods: cpu("nr_periods"),
                    throttled_periods: cpu("nr_throttled"),
                    nanoseconds: cpu("throttled_usec").saturating_mul(1000),
                };
                sample.memory = number(dir, "memory.current").unwrap_or(0);
                sample.memory_max = number(dir, "memory.peak").unwrap_or(0);
                sample.memory_limit = number(dir, "memory.max").unwrap_or(u64::MAX);
                sample.memory_failures = keyed(dir, "memory.events", "max").unwrap_or(0);
                sample.cache = stat("file");
                sample.rss = stat("anon");
                sample.kernel = stat("kernel");
                sample.swap = number(dir, "memory.swap.current").unwrap_or(0);
                sample.inactive_file = stat("inactive_file");
                sample.page_faults = stat("pgfault");
                sample.major_faults = stat("pgmajfault");
                sample.pids = number(dir, "pids.current").unwrap_or(0);
                sample.pids_limit = number(dir, "pids.max").unwrap_or(0);
            }
        }
        sample.oom_kills = cgroup.oom_kills();
        sample
    }

    /// For a sandbox without a cgroup of its own: CPU time as the scheduler counts it for the process.
    fn of_process(pid: i32) -> Sample {
        let mut sample = Sample::default();
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> = text
            .rsplit_once(") ")
            .map(|(_, rest)| {
                rest.split(' ')
                    .map(|field| field.parse().unwrap_or(0))
                    .collect()
            })
            .unwrap_or_default();
        // Fields 14 and 15 of proc_pid_stat(5), in ticks of 1/100 s.
        let ticks = |field: usize| fields.get(field - 3).copied().unwrap_or(0) * 10_000_000;
        sample.cpu_user = ticks(14);
        sample.cpu_system = ticks(15);
        sample.cpu_total = sample.cpu_user + sample.cpu_system;
        sample.memory_limit = u64::MAX;
        sample
    }

    /// The sandbox knows the container's memory and tasks; the cgroup also holds gVisor's own.
    fn refine(&mut self, stats: &Stats) {
        if self.memory == 0 {
            self.memory = stats.memory.usage.usage;
        }
        if stats.pids.current > 0 {
            self.pids = stats.pids.current;
        }
    }

    /// Leaves of the whole sandbox's numbers those of one member of its pod. The cgroup knows the CPU time, the sandbox
    /// how its containers share it (as `runsc events` has it, gVisor `runsc/container/container.go`, populateStats).
    fn narrow(&mut self, id: &str, event: &Event, limits: Limits) {
        let all: u64 = event.container_usage.values().sum();
        let part = event.container_usage.get(id).copied().unwrap_or(0);
        let share = |total: u64| match (all, total) {
            (0, _) => 0,
            (_, 0) => part,
            _ => u64::try_from(u128::from(total) * u128::from(part) / u128::from(all))
                .unwrap_or(u64::MAX),
        };
        self.cpu_total = share(self.cpu_total);
        self.cpu_user = share(self.cpu_user);
        self.cpu_system = share(self.cpu_system);
        let stats = &event.event.data;
        self.memory = stats.memory.usage.usage;
        self.memory_max = self.memory_max.min(self.memory.max(stats.memory.usage.max));
        self.memory_limit = limits.memory.unwrap_or(u64::MAX);
        self.rss = self.memory.saturating_sub(stats.memory.cache);
        self.cache = stats.memory.cache;
        self.inactive_file = 0;
        self.kernel = stats.memory.kernel.usage;
        self.swap = stats.memory.swap.usage;
        self.pids = stats.pids.current;
        self.pids_limit = stats.pids.limit;
    }

    fn message(&self) -> Any {
        if self.v2 { self.v2() } else { self.v1() }
    }

    fn v1(&self) -> Any {
        pack(&v1::Metrics {
            pids: MessageField::some(v1::PidsStat {
                current: self.pids,
                limit: self.pids_limit,
                ..v1::PidsStat::default()
            }),
            cpu: MessageField::some(v1::CPUStat {
                usage: MessageField::some(v1::CPUUsage {
                    total: self.cpu_total,
                    kernel: self.cpu_system,
                    user: self.cpu_user,
                    ..v1::CPUUsage::default()
                }),
                throttling: MessageField::some(v1::Throttle {
                    periods: self.throttled.periods,
                    throttled_periods: self.throttled.throttled_periods,
                    throttled_time: self.throttled.nanoseconds,
                    ..v1::Throttle::default()
                }),
                ..v1::CPUStat::default()
            }),
            memory: MessageField::some(v1::MemoryStat {
                cache: self.cache,
                rss: self.rss,
                total_cache: self.cache,
                total_rss: self.rss,
                total_inactive_file: self.inactive_file,
                pg_fault: self.page_faults,
                pg_maj_fault: self.major_faults,
                total_pg_fault: self.page_faults,
                total_pg_maj_fault: self.major_faults,
                hierarchical_memory_limit: self.memory_limit,
                usage: MessageField::some(v1::MemoryEntry {
                    limit: self.memory_limit,
                    usage: self.memory,
                    max: self.memory_max,
                    failcnt: self.memory_failures,
                    ..v1::MemoryEntry::default()
                }),
                // v1 counts memory and swap together here.
                swap: entry(self.memory.saturating_add(self.swap)),
                kernel: entry(self.kernel),
                ..v1::MemoryStat::default()
            }),
            memory_oom_control: MessageField::some(v1::MemoryOomControl {
                oom_kill: self.oom_kills,
                ..v1::MemoryOomControl::default()
            }),
            ..v1::Metrics::default()
        })
    }

    fn v2(&self) -> Any {
        pack(&v2::Metrics {
            pids: MessageField::some(v2::PidsStat {
                current: self.pids,
                limit: self.pids_limit,
                ..v2::PidsStat::default()
            }),
            cpu: MessageField::some(v2::CPUStat {
                usage_usec: self.cpu_total / 1000,
                user_usec: self.cpu_user / 1000,
                system_usec: self.cpu_system / 1000,
                nr_periods: self.throttled.periods,
                nr_throttled: self.throttled.throttled_periods,
                throttled_usec: self.throttled.nanoseconds / 1000,
                ..v2::CPUStat::default()
            }),
            memory: MessageField::some(v2::MemoryStat {
                anon: self.rss,
                file: self.cache,
                inactive_file: self.inactive_file,
                pgfault: self.page_faults,
                pgmajfault: self.major_faults,
                usage: self.memory,
                usage_limit: self.memory_limit,
                swap_usage: self.swap,
                ..v2::MemoryStat::default()
            }),
            memory_events: MessageField::some(v2::MemoryEvents {
                max: self.memory_failures,
                oom_kill: self.oom_kills,
                ..v2::MemoryEvents::default()
            }),
            ..v2::Metrics::default()
        })
    }
}

fn entry(usage: u64) -> MessageField<v1::MemoryEntry> {
    MessageField::some(v1::MemoryEntry {
        usage,
        ..v1::MemoryEntry::default()
    })
}

/// What the cgroup says at the end of a container; after its removal nobody can say it any more. Of a member, whose own
/// numbers only its sandbox knew, it is the last that was asked for.
pub(super) fn last_sample(container: &Container) -> Option<Sample> {
    let cgroup = container.cgroup()?;
    let (last, oom_kills) = {
        let inner = container.lock();
        (inner.last_stats.clone(), inner.oom_kills)
    };
    let mut sample = match last {
        Some(last) if container.is_member() => last,
        _ => Sample::of_cgroup(&cgroup),
    };
    sample.oom_kills = cgroup.oom_kills().saturating_sub(oom_kills);
    sample.v2 = host_is_v2();
    Some(sample)
}

impl Container {
    /// The cgroup of the container's sandbox.
    pub(super) fn cgroup(&self) -> Option<Cgroup> {
        let (pid, cgroup) = {
            let inner = self.root().lock();
            (inner.pid, inner.cgroup.clone())
        };
        cgroup.or_else(|| Cgroup::of(pid))
    }

    /// For Stats. After the end: the last reading.
    pub(crate) async fn stats(&self) -> Result<Any> {
        if matches!(self.phase(), Phase::Stopped | Phase::Deleted) {
            let last = self.lock().last_stats.clone();
            return last.map(|sample| sample.message()).ok_or_else(|| {
                TaskError::NotFound(format!(
                    "container {} has ended, there are no statistics",
                    self.id
                ))
            });
        }
        let mut sample = match self.cgroup() {
            Some(cgroup) => Sample::of_cgroup(&cgroup),
            None => Sample::of_process(self.pid().cast_signed()),
        };
        sample.v2 = host_is_v2();
        sample.oom_kills = sample.oom_kills.saturating_sub(self.lock().oom_kills);
        if matches!(self.phase(), Phase::Running | Phase::Paused) {
            match self.control().event(&self.id).await {
                Ok(event) if self.is_member() => {
                    sample.narrow(&self.id, &event, self.limits());
                    self.lock().last_stats = Some(sample.clone());
                }
                // The sandbox container's numbers are the pod's.
                Ok(_) if self.in_pod() => {}
                Ok(event) => sample.refine(&event.event.data),
                Err(error) => tracing::debug!(%error, "the sandbox gave no statistics"),
            }
        }
        Ok(sample.message())
    }
}

#[cfg(test)]
mod tests {
    use protobuf::Message;

    use super::*;

    #[test]
    fn a_member_gets_its_share_of_the_sandbox() {
        let mut sample = Sample {
            cpu_total: 1000,
            cpu_user: 600,
            memory: 1 << 30,
            memory_max: 2 << 30,
            ..Sample::default()
        };
        let mut event = Event {
            container_usage: [("a".to_owned(), 30), ("b".to_owned(), 10)].into(),
            ..Event::default()
        };
        event.event.data.memory.usage.usage = 5 << 20;
        event.event.data.pids.current = 3;
        let limits = Limits {
            memory: Some(7),
            ..Limits::default()
        };
        sample.narrow("a", &event, limits);
        assert_eq!((sample.cpu_total, sample.cpu_user), (750, 450));
        assert_eq!((sample.memory, sample.pids), (5 << 20, 3));
        assert_eq!(sample.memory_limit, 7);
        sample.narrow("unknown", &event, Limits::default());
        assert_eq!(sample.cpu_total, 0);
    }

    #[test]
    fn the_type_is_the_hosts_and_units_are_its() {
        let mut sample = Sample {
            cpu_total: 5_000_000,
            memory: 7,
            oom_kills: 1,
            ..Sample::default()
        };
        let any = sample.message();
        assert_eq!(any.type_url, "io.containerd.cgroups.v1.Metrics");
        let metrics = v1::Metrics::parse_from_bytes(&any.value).unwrap();
        assert_eq!(metrics.cpu.usage.total, 5_000_000);
        assert_eq!(metrics.memory_oom_control.oom_kill, 1);
        sample.v2 = true;
        let any = sample.message();
        assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
        let metrics = v2::Metrics::parse_from_bytes(&any.value).unwrap();
        assert_eq!((metrics.cpu.usage_usec, metrics.memory.usage), (5_000, 7));
    }
}
