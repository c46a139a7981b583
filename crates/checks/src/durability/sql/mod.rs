//! SQL clients of all nodes, and the check of what they have seen.
//!
//! A client transfers money between accounts, appends to lists and reads them, and sums all
//! accounts. It records each transaction, from before it begins until its end is known. The sum
//! never changes; each acknowledged transfer is found; the lists tell the order of transactions, in
//! which [`history`] looks for anomalies.

pub mod history;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_admin::{
    config::Config,
    control::{Control, ControlError},
    layout::ClusterDir,
    postgres::{PostgresClient, PostgresError},
    sql::SqlAddress,
};
use plexus_sim::Random;
use serde_json::Value;

use self::history::{Operation, Outcome, RecordedTransaction};
use super::workload::{Refusals, Workload};
use crate::executive::nodes::{Nodes, TIMEOUT};

/// The clients of each node.
const CLIENTS: usize = 3;

/// The balance of each account at first.
const BALANCE: u64 = 100;

/// The lists that are appended to at the same time, and the appends after which others are.
const LISTS: u64 = 6;
const APPENDS: u64 = 120;

/// The rows of a table that is made and removed, and the bytes of each: more than a group of some
/// MiB has room for without using space again.
const TABLE_ROWS: usize = 100;
const TABLE_ROW_BYTES: usize = 1000;

/// The longest silence of a node that a client endures.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause of a client that does not reach its node.
const RESTS: Duration = Duration::from_millis(20);

/// The errors that a correct node may return beside faults: no connection now, a serialization
/// failure, a deadlock, the end of a session or of the node, an error of its disk.
const MAY_FAIL: [&str; 7] = ["57P03", "40001", "40P01", "57P01", "57P02", "58000", "58030"];

/// A row of text.
type TextRow = Vec<Option<String>>;

/// The SQL clients of a cluster, each bound to a node.
pub struct SqlClients {
    dir: ClusterDir,
    addresses: Vec<SqlAddress>,
    accounts: u64,
    start: Instant,
    count: AtomicU64,
    over: AtomicBool,
    /// The last value that was appended to a list.
    value: AtomicU64,
    /// By client: its transactions. An append is here before a node hears of it.
    history: Mutex<Vec<Vec<RecordedTransaction>>>,
    /// The transactions that have read all lists.
    readers: Mutex<Vec<RecordedTransaction>>,
    /// By client: its transfers, and whether each was acknowledged. The others may be there.
    transfers: Vec<Mutex<Vec<bool>>>,
    /// An observation that must not be made.
    failure: Mutex<Option<String>>,
    refusals: Mutex<Refusals>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(row: &TextRow, column: usize) -> Result<u64, String> {
    let value = row.get(column).and_then(Option::as_deref);
    value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("{row:?}: no number"))
}

fn values(list: &str) -> Result<Vec<u64>, String> {
    list.split_whitespace().map(|value| value.parse().map_err(|_| format!("{list:?} is no list"))).collect()
}

/// The present transaction of a client.
struct Session<'a> {
    clients: &'a SqlClients,
    connection: PostgresClient,
}

/// The reason why a transaction has not ended with an acknowledgement.
enum Failed {
    /// It is rolled back.
    Aborted(PostgresError),
    /// It may be committed.
    Unknown(PostgresError),
    /// The observation must not be made.
    Wrong(String),
}

impl SqlClients {
    /// Makes the tables, and the clients of all nodes.
    ///
    /// # Errors
    /// A node does not run a statement.
    pub fn new(nodes: &Nodes, accounts: u64) -> Result<Self, String> {
        let config = Config::load(&nodes.dir()).map_err(|why| why.to_string())?;
        let address = |node: &plexus_admin::config::NodeConfig| {
            SqlAddress::of(&config, node.number)?.ok_or_else(|| "no SQL".to_owned())
        };
        let clients = Self {
            dir: nodes.dir(),
            addresses: config.nodes.iter().map(address).collect::<Result<_, _>>()?,
            accounts,
            start: Instant::now(),
            count: AtomicU64::new(0),
            over: AtomicBool::new(false),
            value: AtomicU64::new(0),
            history: Mutex::new(vec![Vec::new(); nodes.count() * CLIENTS]),
            readers: Mutex::default(),
            transfers: (0..nodes.count() * CLIENTS).map(|_| Mutex::default()).collect(),
            failure: Mutex::default(),
            refusals: Mutex::default(),
        };
        let mut connection = clients.connect_soon(0).map_err(|why| why.to_string())?;
        let rows: Vec<String> = (0..accounts).map(|id| format!("({id}, {BALANCE})")).collect();
        let statements = [
            "create table accounts (id int primary key, balance int not null)".to_owned(),
            "create index accounts_balance on accounts (balance)".to_owned(),
            "create table transfers (client int, number int, primary key (client, number))".to_owned(),
            "create table lists (id int primary key, items text not null)".to_owned(),
            format!("insert into accounts values {}", rows.join(", ")),
        ];
        for statement in statements {
            connection.run(&statement).map_err(|why| format!("{statement}: {why}"))?;
        }
        Ok(clients)
    }

    fn connect(&self, node: usize, silence: Duration) -> Result<PostgresClient, PostgresError> {
        PostgresClient::connect_within(&self.addresses[node], "torture", Some(silence))
    }

    /// Connects to a node as soon as it serves SQL.
    fn connect_soon(&self, node: usize) -> Result<PostgresClient, PostgresError> {
        let start = Instant::now();
        loop {
            match self.connect(node, TIMEOUT) {
                Err(_) if start.elapsed() < TIMEOUT => thread::sleep(RESTS),
                connected => return connected,
            }
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn wrong(&self, why: String) {
        lock(&self.failure).get_or_insert(why);
    }

    /// Changes the record of the last transaction of a client.
    fn record(&self, client: usize, act: impl FnOnce(&mut RecordedTransaction)) {
        if let Some(record) = lock(&self.history)[client].last_mut() {
            act(record);
        }
    }

    /// Notes an error; one that a correct node never returns is a failure.
    fn refused(&self, node: usize, error: &PostgresError) {
        let PostgresError::Refused(notice) = error else { return };
        let whole = format!("{}: {} ({})", Nodes::name(node), notice.message, notice.code);
        if !MAY_FAIL.contains(&notice.code.as_str()) {
            self.wrong(whole.clone());
        }
        lock(&self.refusals).entry(notice.code.clone()).or_insert((0, whole)).0 += 1;
    }

    /// Runs transactions on a connection until it is lost or the run is over.
    fn session(&self, client: usize, random: &mut Random) {
        let node = client / CLIENTS;
        let connection = match self.connect(node, SILENCE) {
            Ok(connection) => connection,
            Err(error) => return self.refused(node, &error),
        };
        let mut session = Session { clients: self, connection };
        while !self.over.load(Ordering::Relaxed) {
            let ended = match random.below(100) {
                0..40 => session.transfer(client, random),
                40..90 => session.lists(client, random),
                90..99 => session.sum(random),
                _ => session.table(client, random),
            };
            match ended {
                Ok(()) => _ = self.count.fetch_add(1, Ordering::Relaxed),
                Err(Failed::Wrong(why)) => return self.wrong(format!("{}: {why}", Nodes::name(node))),
                Err(Failed::Aborted(error) | Failed::Unknown(error)) => {
                    self.refused(node, &error);
                    if !matches!(&error, PostgresError::Refused(notice) if notice.severity == "ERROR")
                        || session.connection.run("rollback").is_err()
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Reads everything at a node with one snapshot: the sum, the transfers, and the lists.
    fn read_all(&self, node: usize) -> Result<[Vec<TextRow>; 3], PostgresError> {
        let mut connection = self.connect_soon(node)?;
        connection.run("begin isolation level repeatable read")?;
        let mut rows = [
            "select sum(balance), count(*) from accounts",
            "select client, number from transfers",
            "select id, items from lists",
        ]
        .map(|statement| connection.run(statement));
        let all = rows.each_mut().map(|rows| std::mem::replace(rows, Ok(Vec::new())));
        let [sums, transfers, lists] = all;
        connection.run("commit")?;
        Ok([sums?, transfers?, lists?])
    }

    /// Lets a node check its store, beside the clients.
    fn check_store(&self, node: usize) -> Result<(), String> {
        let name = Nodes::name(node);
        let ask = || -> Result<Value, ControlError> {
            let mut control = Control::connect(&self.dir, &name)?;
            control.set_timeout(TIMEOUT)?;
            control.call("store.check", Value::Null, |_| ())
        };
        let found = ask().map_err(|why| format!("{name} does not check its store: {why}"))?;
        match found["faults"].as_array().filter(|faults| faults.is_empty()) {
            Some(_) => Ok(()),
            None => Err(format!("{name} has checked the store: {found}")),
        }
    }

    fn check_transfers(
        &self,
        node: usize,
        acknowledged: &[Vec<bool>],
        rows: &[TextRow],
    ) -> Result<(), String> {
        let mut found = vec![BTreeSet::new(); acknowledged.len()];
        for row in rows {
            found[number(row, 0)? as usize].insert(number(row, 1)? as usize);
        }
        for (client, (acknowledged, found)) in acknowledged.iter().zip(&found).enumerate() {
            let is_lost = |number: &usize| acknowledged[*number] && !found.contains(number);
            if let Some(number) = (0..acknowledged.len()).find(is_lost) {
                let node = Nodes::name(node);
                return Err(format!("{node} does not find transfer {number} of client {client}"));
            }
        }
        Ok(())
    }
}

impl Session<'_> {
    fn run(&mut self, statement: &str) -> Result<Vec<TextRow>, Failed> {
        self.connection.run(statement).map_err(Failed::Aborted)
    }

    fn begin(&mut self, random: &mut Random) -> Result<bool, Failed> {
        let is_repeatable = random.percent(50);
        self.run(if is_repeatable { "begin isolation level repeatable read" } else { "begin" })?;
        Ok(is_repeatable)
    }

    /// Commits. An error of a serialization tells that it is rolled back.
    fn commit(&mut self) -> Result<(), Failed> {
        self.connection.run("commit").map(drop).map_err(|error| match &error {
            PostgresError::Refused(notice) if notice.code.starts_with("40") => Failed::Aborted(error),
            _ => Failed::Unknown(error),
        })
    }

    fn transfer(&mut self, client: usize, random: &mut Random) -> Result<(), Failed> {
        let accounts = self.clients.accounts;
        let from = random.below(accounts);
        let to = (from + 1 + random.below(accounts - 1)) % accounts;
        let amount = random.below(5);
        let transfers = &self.clients.transfers[client];
        let number = {
            let mut transfers = lock(transfers);
            transfers.push(false);
            transfers.len() - 1
        };
        self.begin(random)?;
        // Locks, perhaps: the balances stay as they were read.
        let strength =
            *random.pick(&[None, Some("update"), Some("no key update"), Some("share"), Some("key share")]);
        let both = format!("select id, balance from accounts where id = {from} or id = {to} order by id");
        let locked = match strength {
            Some(strength) => self.run(&format!("{both} for {strength}"))?,
            None => Vec::new(),
        };
        if strength.is_some_and(|strength| strength != "key share") {
            let again = self.run(&both)?;
            if again != locked {
                return Err(Failed::Wrong(format!(
                    "rows that are locked have changed: {locked:?}, {again:?}"
                )));
            }
        }
        for (account, sign) in [(from, '-'), (to, '+')] {
            self.run(&format!("update accounts set balance = balance {sign} {amount} where id = {account}"))?;
        }
        self.run(&format!("insert into transfers values ({client}, {number})"))?;
        self.commit()?;
        lock(transfers)[number] = true;
        Ok(())
    }

    fn sum(&mut self, random: &mut Random) -> Result<(), Failed> {
        let is_repeatable = self.begin(random)?;
        let sums = "select sum(balance), count(*) from accounts";
        let rows = self.run(sums)?;
        if !is_repeatable && random.percent(20) {
            // So no transfer is between two statements.
            self.run("select id from accounts order by id for share")?;
            let [first, second] = [self.run(sums)?, self.run("select sum(balance), count(*) from accounts")?];
            if first != second {
                return Err(Failed::Wrong(format!(
                    "rows that are locked have changed: {first:?}, {second:?}"
                )));
            }
        }
        self.commit()?;
        check_sum(self.clients.accounts, &rows).map_err(Failed::Wrong)
    }

    /// Makes a table with rows and an index, and removes it in one of several ways.
    fn table(&mut self, client: usize, random: &mut Random) -> Result<(), Failed> {
        self.run(&format!("drop table if exists t{client}"))?;
        self.begin(random)?;
        self.run(&format!("create table t{client} (id int primary key, item text, number int unique)"))?;
        let filler = "x".repeat(TABLE_ROW_BYTES);
        let rows: Vec<String> = (0..TABLE_ROWS).map(|id| format!("({id}, '{filler}', {id})")).collect();
        self.run(&format!("insert into t{client} values {}", rows.join(", ")))?;
        match random.below(3) {
            0 => self.run("rollback").map(drop),
            1 => self.commit(),
            _ => {
                self.commit()?;
                self.run(&format!("truncate t{client}"))?;
                self.run(&format!("insert into t{client} values (1, 'one', 1)")).map(drop)
            }
        }
    }

    fn lists(&mut self, client: usize, random: &mut Random) -> Result<(), Failed> {
        let clients = self.clients;
        let begin = clients.now();
        let is_repeatable = self.begin(random)?;
        let record =
            RecordedTransaction { begin, end: u64::MAX, is_repeatable, ..RecordedTransaction::default() };
        lock(&clients.history)[client].push(record);
        let ended = self.list_operations(client, random);
        clients.record(client, |record| match &ended {
            Ok(()) => (record.outcome, record.end) = (Outcome::Committed, clients.now()),
            Err(Failed::Aborted(_)) => record.outcome = Outcome::Aborted,
            Err(Failed::Unknown(_) | Failed::Wrong(_)) => {}
        });
        ended
    }

    fn list_operations(&mut self, client: usize, random: &mut Random) -> Result<(), Failed> {
        for _ in 0..=random.below(3) {
            let newest = self.clients.value.load(Ordering::Relaxed);
            let list = newest / APPENDS * LISTS + random.below(LISTS);
            if random.percent(50) {
                let value = self.clients.value.fetch_add(1, Ordering::Relaxed) + 1;
                self.clients.record(client, |record| record.operations.push(Operation::Append(list, value)));
                self.run(&format!(
                    "insert into lists values ({list}, '{value}') \
                     on conflict (id) do update set items = lists.items || ' {value}'"
                ))?;
            } else {
                let rows = self.run(&format!("select items from lists where id = {list}"))?;
                let items = rows.into_iter().flatten().flatten().next().unwrap_or_default();
                let read = Operation::Read(list, values(&items).map_err(Failed::Wrong)?);
                self.clients.record(client, |record| record.operations.push(read));
            }
        }
        self.commit()
    }
}

fn check_sum(accounts: u64, rows: &[TextRow]) -> Result<(), String> {
    let row = rows.first().ok_or("no sum")?;
    let (sum, count) = (number(row, 0)?, number(row, 1)?);
    let expected = accounts * BALANCE;
    match (sum, count) == (expected, accounts) {
        true => Ok(()),
        false => Err(format!("{count} accounts have {sum} together, not {accounts} with {expected}")),
    }
}

impl Workload for SqlClients {
    fn clients(&self) -> usize {
        self.transfers.len()
    }

    fn over(&self) -> &AtomicBool {
        &self.over
    }

    fn count(&self) -> &AtomicU64 {
        &self.count
    }

    fn work(&self, client: usize, seed: u64) {
        let mut random = Random::new(seed << 8 | client as u64);
        while !self.over.load(Ordering::Relaxed) {
            self.session(client, &mut random);
            thread::sleep(RESTS);
        }
    }

    fn answers(&self, node: usize) -> Result<(), String> {
        let sum = self.connect(node, SILENCE).and_then(|mut connection| {
            connection.run("select count(*) from lists")?;
            connection.run("select sum(balance), count(*) from accounts")
        });
        check_sum(self.accounts, &sum.map_err(|why| why.to_string())?)
    }

    fn check(&self, node: usize) -> Result<u64, String> {
        let acknowledged: Vec<_> = self.transfers.iter().map(|transfers| lock(transfers).clone()).collect();
        let begin = self.now();
        let [sums, transfers, lists] =
            self.read_all(node).map_err(|why| format!("{}: {why}", Nodes::name(node)))?;
        let end = self.now();
        check_sum(self.accounts, &sums)?;
        self.check_transfers(node, &acknowledged, &transfers)?;
        let mut read = BTreeMap::new();
        for row in &lists {
            let items = row.get(1).and_then(Option::as_deref).unwrap_or_default();
            read.insert(number(row, 0)?, values(items)?);
        }
        // The whole read is a transaction of its own, which has also seen that a list is empty.
        let lists = 0..(self.value.load(Ordering::Relaxed) / APPENDS + 1) * LISTS;
        let operations = lists.map(|list| Operation::Read(list, read.remove(&list).unwrap_or_default()));
        let reader = RecordedTransaction {
            begin,
            end,
            is_repeatable: true,
            outcome: Outcome::Committed,
            operations: operations.collect(),
        };
        let mut history = lock(&self.history).concat();
        history.extend(lock(&self.readers).iter().cloned().chain([reader.clone()]));
        history::check(&history)?;
        lock(&self.readers).push(reader);
        self.check_store(node)?;
        lock(&self.failure).clone().map_or(Ok(()), Err)?;
        Ok(self.count.load(Ordering::Relaxed))
    }

    fn refusals(&self) -> &Mutex<Refusals> {
        &self.refusals
    }
}
