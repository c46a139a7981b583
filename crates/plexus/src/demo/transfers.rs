//! Bank transfers through SQL on three nodes, one of which is killed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use plexus_admin::{
    TemporaryCluster,
    config::Config,
    postgres::PostgresClient,
    sql::{SECTION, SqlAddress},
};
use plexus_base::{NodeId, Waiting};
use serde::Serialize;

use super::stop;
use crate::commands::measured::{self, TemporarySpec};

/// The accounts, and what each has at the start.
const ACCOUNTS: u64 = 300;
const BALANCE: u64 = 1000;

/// The clients of each node.
pub(super) const CLIENTS: u32 = 4;

/// The time before the measured run, its time, and the time after the death of a node.
const WARM: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(2500);
const AFTER: Duration = Duration::from_millis(2500);

/// The longest time until the clients of the other nodes must go on.
const LONGEST: Duration = Duration::from_secs(20);

/// The node that is killed.
const VICTIM: usize = 2;

/// The phases of a run.
const STARTING: u8 = 0;
const MEASURING: u8 = 1;
const DYING: u8 = 2;
const ENDING: u8 = 3;

/// The bank transfers, and what a killed node did to them.
#[derive(Serialize)]
pub(crate) struct TransfersReport {
    pub(crate) nodes: usize,
    /// The clients on each node.
    pub(crate) clients: u32,
    /// The transactions/s of all nodes before the kill.
    pub(crate) per_s: f64,
    /// The response times before the kill, in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The node that was killed.
    pub(crate) victim: String,
    /// The time from the kill to the first commit of another node that began behind it, in
    /// milliseconds.
    pub(crate) first_ms: f64,
    /// The time from the kill until each client of the other nodes had committed again.
    pub(crate) all_ms: f64,
    /// The transactions/s of the other nodes after that.
    pub(crate) per_s_after: f64,
    /// The transactions that were acknowledged to clients, and how many of them were found.
    pub(crate) acknowledged: u64,
    pub(crate) found: u64,
    /// The sum of all balances at the end, which must be that of the start.
    pub(crate) sum: u64,
    pub(crate) expected_sum: u64,
}

/// The observations of a client.
#[derive(Default)]
struct Seen {
    acknowledged: u64,
    /// The response times of the measured run.
    responses: Vec<Duration>,
    /// The first commit that began behind the kill.
    first: Option<Instant>,
    after: u64,
}

/// The state that the clients share with the main thread.
struct Run {
    phase: AtomicU8,
    /// Set when a client has failed that should not.
    failed: AtomicBool,
}

/// Returns a number that looks random.
fn mixed(of: u64) -> u64 {
    let mut bits = of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 31;
    bits.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Returns the statements of a transfer: they change the lower account first, so that no two
/// transfers wait for each other.
fn transfer(client: u64, number: u64) -> String {
    let draw = mixed(client << 32 | number);
    let from = draw % ACCOUNTS;
    let to = (from + 1 + draw / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS;
    let amount = (draw >> 30) % 10;
    let change = |account: u64| {
        let sign = if account == from { '-' } else { '+' };
        format!("update accounts set balance = balance {sign} {amount} where id = {account};")
    };
    format!(
        "begin; {} {} insert into transfers values ({client}, {number}, {amount}); commit",
        change(from.min(to)),
        change(from.max(to))
    )
}

/// Does transfers until the run ends, or the node dies.
fn client(run: &Run, address: &SqlAddress, id: u64, may_fail: bool) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let mut work = || -> anyhow::Result<()> {
        let mut client = PostgresClient::connect(address, "plexus demo")?;
        for number in 0.. {
            let phase = run.phase.load(SeqCst);
            if phase == ENDING {
                return Ok(());
            }
            let begin = Instant::now();
            client.run(&transfer(id, number)).context("a transfer failed")?;
            seen.acknowledged += 1;
            match phase {
                MEASURING => seen.responses.push(begin.elapsed()),
                DYING if seen.first.is_none() => seen.first = Some(Instant::now()),
                DYING => seen.after += 1,
                _ => {}
            }
        }
        Ok(())
    };
    match work() {
        Err(error) if !may_fail => {
            run.failed.store(true, SeqCst);
            Err(error)
        }
        _ => Ok(seen),
    }
}

/// Returns the one value of a query.
fn number(client: &mut PostgresClient, query: &str) -> anyhow::Result<u64> {
    let found = client.run(query)?.into_iter().flatten().next().flatten();
    found.as_deref().unwrap_or_default().parse().with_context(|| format!("no number: {query}"))
}

fn fill(client: &mut PostgresClient) -> anyhow::Result<()> {
    let rows: Vec<String> = (0..ACCOUNTS).map(|id| format!("({id}, {BALANCE})")).collect();
    let statements = [
        "create table accounts (id int primary key, balance bigint not null)".to_owned(),
        "create table transfers (client int, number int, amount int, primary key (client, number))"
            .to_owned(),
        format!("insert into accounts values {}", rows.join(", ")),
    ];
    for statement in statements {
        client.run(&statement)?;
    }
    Ok(())
}

fn addresses(config: &Config) -> anyhow::Result<Vec<SqlAddress>> {
    let of = |node: NodeId| SqlAddress::of(config, node).map_err(anyhow::Error::msg);
    let all = config.nodes.iter().map(|node| of(node.number)?.context("no SQL"));
    all.collect()
}

/// Runs transfers on three nodes, and kills one of them.
pub(super) fn run(interrupted: &AtomicBool) -> anyhow::Result<TransfersReport> {
    stop(interrupted)?;
    let spec = TemporarySpec {
        rail: "shm",
        nodes: 3,
        workers: 1,
        waiting: Waiting::Adaptive,
        block_kib: 8,
        cache_mib: 16,
        hot: 64,
        pin: false,
    };
    let mut parameters = spec.parameters()?;
    let config = &mut parameters.config;
    (config.redo_mib, config.blocks) = (64, 8 << 10);
    config.sections.insert(SECTION.into(), "port = 5433\nuser = \"demo\"\n".into());
    let cluster = TemporaryCluster::start(&parameters, &mut |_, _| {})?;
    let report = on(&cluster, interrupted);
    stop(interrupted)?;
    let report = report.map_err(measured::explained)?;
    measured::take_down(cluster)?;
    Ok(report)
}

/// Waits, or fails if the run is over.
fn pause(run: &Run, time: Duration, interrupted: &AtomicBool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        stop(interrupted)?;
        if run.failed.load(SeqCst) {
            break;
        }
        thread::sleep(Duration::from_millis(5).min(time));
    }
    Ok(())
}

fn on(cluster: &TemporaryCluster, interrupted: &AtomicBool) -> anyhow::Result<TransfersReport> {
    let config = cluster.config();
    let addresses = addresses(config)?;
    let mut first = PostgresClient::connect(&addresses[0], "plexus demo")?;
    fill(&mut first)?;
    let run = Arc::new(Run { phase: AtomicU8::new(STARTING), failed: AtomicBool::new(false) });
    let mut clients = Vec::new();
    for (node, address) in addresses.iter().enumerate() {
        for number in 0..CLIENTS {
            let id = node as u64 * u64::from(CLIENTS) + u64::from(number);
            let (run, address) = (run.clone(), address.clone());
            let work = move || client(&run, &address, id, node == VICTIM);
            clients.push((node, thread::Builder::new().name(format!("transfer-{id}")).spawn(work)?));
        }
    }
    let phases = || -> anyhow::Result<(Duration, Instant, Duration)> {
        pause(&run, WARM, interrupted)?;
        run.phase.store(MEASURING, SeqCst);
        let begin = Instant::now();
        pause(&run, MEASURED, interrupted)?;
        let measured = begin.elapsed();
        cluster.kill(&[VICTIM])?;
        let killed = Instant::now();
        run.phase.store(DYING, SeqCst);
        pause(&run, AFTER, interrupted)?;
        Ok((measured, killed, killed.elapsed()))
    };
    let phases = phases();
    run.phase.store(ENDING, SeqCst);
    let mut seen = Vec::new();
    for (node, client) in clients {
        let ended = client.join().map_err(|_| anyhow::anyhow!("a client has panicked"))?;
        seen.push((node, ended));
    }
    let (measured, killed, after) = phases?;
    let seen =
        seen.into_iter().map(|(node, ended)| Ok((node, ended?))).collect::<anyhow::Result<Vec<_>>>()?;
    let mut responses: Vec<_> = seen.iter().flat_map(|(_, seen)| seen.responses.iter().copied()).collect();
    responses.sort_unstable();
    let percentile = |share: f64| {
        let at = (responses.len() as f64 * share) as usize;
        responses.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let others = || seen.iter().filter(|(node, _)| *node != VICTIM);
    let firsts = others().map(|(_, seen)| seen.first.map(|first| first.duration_since(killed)));
    let firsts: Vec<Duration> = firsts.map(|first| first.unwrap_or(LONGEST)).collect();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let all = firsts.iter().max();
    ensure!(all.is_some_and(|all| *all < LONGEST), "clients of the other nodes did not go on");
    let rest = after.saturating_sub(all.copied().unwrap_or_default()).as_secs_f64();
    // Each client's transfers are numbered from 0 without a gap.
    let mut found = 0;
    for (id, (_, seen)) in seen.iter().enumerate() {
        let query =
            format!("select count(*) from transfers where client = {id} and number < {}", seen.acknowledged);
        found += number(&mut first, &query)?;
    }
    Ok(TransfersReport {
        nodes: addresses.len(),
        clients: CLIENTS,
        per_s: responses.len() as f64 / measured.as_secs_f64(),
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        victim: config.nodes[VICTIM].name.clone(),
        first_ms: ms(firsts.iter().min()),
        all_ms: ms(all),
        per_s_after: others().map(|(_, seen)| seen.after).sum::<u64>() as f64 / rest.max(0.001),
        acknowledged: seen.iter().map(|(_, seen)| seen.acknowledged).sum(),
        found,
        sum: number(&mut first, "select sum(balance) from accounts")?,
        expected_sum: ACCOUNTS * BALANCE,
    })
}
