//! Members that are killed, paused and restarted, over two paths and over shared memory. The
//! survivor notices once, keeps nothing of the dead, and accepts no other incarnation until it
//! restarts itself.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use plexus_checks::faults::{Net, Pair, Report, Side, member::Member};
use plexus_fabric::RailKind;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use crate::{alone, net, one_path::segments, program, spec, unharmed};

/// Starts a pair with traffic over all its rails: two paths, or memory.
fn joined(net: Option<&Net>) -> Pair {
    let (rail, paths) = net.map_or((RailKind::Shm, 1), |net| (RailKind::Tcp, net.paths()));
    let mut pair = Pair::start(spec(rail, net.is_some()), net).unwrap();
    pair.joined(paths).unwrap();
    pair.flows().unwrap();
    pair
}

/// Asks `side` until its report satisfies a condition; the other member may be gone.
fn until(pair: &mut Pair, side: Side, what: &str, so: impl Fn(&Pair, &Report) -> bool) {
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let report = pair.report(side).unwrap();
        if so(pair, &report) {
            return;
        }
        assert!(Instant::now() < end, "waiting until {what}: {report}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a member, starts another incarnation of it, kills that and the survivor, and starts both
/// again.
fn killed_and_started_again(pair: &mut Pair, victim: Side) {
    let survivor = Side::BOTH[1 - victim.index()];
    let before = pair.holds(survivor).unwrap();
    pair.kill(victim).unwrap();
    until(pair, survivor, "the dead is gone and nothing of it is left", |pair, report| {
        report.gone == 1
            && !report.rails.iter().any(|rail| rail.is_up())
            && pair.holds(survivor).unwrap().is_flat_since(&before)
    });
    // The member with the higher number calls and is refused; the other receives no more calls.
    pair.begin(victim).unwrap();
    match victim {
        Side::A => assert_eq!(pair.report(victim).unwrap().ups, 0),
        Side::B => until(pair, victim, "the new incarnation is told what to do", |_, report| {
            report
                .problem
                .as_ref()
                .is_some_and(|why| why.contains("start it again if it does not come in by itself"))
        }),
    }
    // It ends when all of its connections were refused: the survivor has not seen another peer come
    // or go.
    let [new, old] = [victim, survivor].map(|side| pair.report(side).unwrap());
    assert_eq!([(new.ups, new.gone), (old.ups, old.gone)], [(0, 0), (1, 1)], "{new}; {old}");
    Side::BOTH.into_iter().for_each(|side| pair.kill(side).unwrap());
    let began = Instant::now();
    Side::BOTH.into_iter().for_each(|side| pair.begin(side).unwrap());
    pair.until("both are connected", |_, report| report.ups == 1).unwrap();
    eprintln!("connected {} ms after both were started", began.elapsed().as_millis());
    pair.flows().unwrap();
}

/// Pauses each member twice; traffic continues.
fn stands_still_and_goes_on(pair: &mut Pair) {
    for side in Side::BOTH {
        // Shorter than the timeout of a link, then longer.
        for ms in [200, 2500] {
            pair.signal(side, Signal::STOP).unwrap();
            thread::sleep(Duration::from_millis(ms));
            pair.signal(side, Signal::CONT).unwrap();
            pair.flows().unwrap();
        }
    }
}

#[test]
fn restarted_member_joins_only_after_the_survivor_restarts() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = joined(Some(&net));
    for victim in Side::BOTH {
        killed_and_started_again(&mut pair, victim);
    }
    pair.joined(2).unwrap();
    unharmed(pair);
}

#[test]
fn restarted_member_joins_only_after_the_survivor_restarts_over_shared_memory() {
    let _alone = alone();
    let before = segments();
    let mut pair = joined(None);
    for victim in Side::BOTH {
        killed_and_started_again(&mut pair, victim);
    }
    unharmed(pair);
    let left: Vec<_> = segments().difference(&before).cloned().collect();
    assert!(!left.iter().any(|path| path.to_string_lossy().contains("plexus")), "{left:?}");
}

#[test]
fn paused_member_continues() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = joined(Some(&net));
    stands_still_and_goes_on(&mut pair);
    let reports = pair.joined(2).unwrap();
    for rail in reports.iter().flat_map(|report| &report.rails) {
        assert_eq!(rail.generation, 1, "its system answered all the time: {reports:?}");
    }
    unharmed(pair);
}

/// A paused member does not see the end of its input.
#[test]
fn stopped_member_ends_with_its_parent() {
    let _alone = alone();
    let address = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let member = Member {
        me: 0,
        cluster: std::process::id().into(),
        incarnation: 1,
        rail: RailKind::Tcp,
        encrypt: false,
        listen: vec![address()],
        peer: vec![address()],
        namespace: None,
    };
    // Not the last command, so that the shell stays in between.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\"; true", "sh"]).arg(program()).arg("member").arg(member.to_argument().unwrap());
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = shell.stdin.take().unwrap();
    writeln!(input, "report").unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.parse::<Report>().unwrap();
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
    let pid = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    let member = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    let mut ended = [PollFd::new(&member, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 40, tv_nsec: 0 };
    assert_eq!(poll(&mut ended, Some(&timeout)).unwrap(), 1, "it is still there");
}

#[test]
fn paused_member_over_shared_memory_continues_or_can_be_killed() {
    let _alone = alone();
    let mut pair = joined(None);
    stands_still_and_goes_on(&mut pair);
    assert!(Side::BOTH.iter().all(|side| pair.report(*side).unwrap().gone == 0));
    let before = pair.holds(Side::A).unwrap();
    pair.signal(Side::B, Signal::STOP).unwrap();
    pair.kill(Side::B).unwrap();
    until(&mut pair, Side::A, "the dead is gone and nothing of it is left", |pair, report| {
        report.gone == 1 && pair.holds(Side::A).unwrap().is_flat_since(&before)
    });
}
