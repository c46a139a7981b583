//! What the command line asks of the lock manager: a lock for as long as the connection stands, and who has what.
//!
//! `lock` takes `{"name", "mode", "wait_ms"}` (no `wait_ms`: as long as it takes; 0: not at all), says `{"granted":{"mode","token"}}`, and
//! gives the lock up when the connection ends, in whatever way the program at its other end did. It fails when the lock protects nothing any more.

use std::{sync::Arc, time::Duration};

use plexus_locks::{
    Ask, Lock, Survey,
    protocol::{Mode, Name, Validity},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{body::Body, config::Config, control::Command};

/// How often it is looked whether the connection stands.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long the workers may take to say what they know.
const SURVEY_WITHIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockArgs {
    /// Of what.
    pub name: String,
    /// NL, CR, CW, PR, PW or EX.
    pub mode: String,
    /// How long it waits; nothing: as long as it takes. 0: not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// One resource that a node masters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockedResource {
    /// Its name; bytes that are no text are replaced.
    pub name: String,
    /// The node that masters it.
    pub master: String,
    /// What its value block is: `unwritten`, `valid` or `lost`.
    pub value: String,
    /// Who has it.
    pub granted: Vec<LockHolder>,
    /// Who waits, the first first.
    pub waiting: Vec<LockWaiter>,
}

/// Who has a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    /// The node whose client it is.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// How.
    pub mode: String,
    /// The fencing token.
    pub token: u64,
}

/// Who waits for a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWaiter {
    /// The node whose client it is.
    pub node: String,
    /// The number of the lock there.
    pub lock: u64,
    /// How it wants it.
    pub mode: String,
    /// For how long it has waited.
    pub waited_ms: u64,
    /// Whether it has the lock in another mode meanwhile.
    pub converts: bool,
}

/// The commands `lock` and `locks`.
pub(crate) fn commands(config: &Arc<Config>, me: &str, body: &Arc<Body>) -> [Arc<dyn Command>; 2] {
    let survey = ShowLocks { config: config.clone(), me: me.to_owned(), body: body.clone() };
    [Arc::new(TakeLock(body.clone())), Arc::new(survey)]
}

struct TakeLock(Arc<Body>);

impl Command for TakeLock {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let args: LockArgs = serde_json::from_value(args).map_err(|error| format!("lock: {error}"))?;
        let name = Name::new(args.name.as_bytes()).map_err(|error| error.to_string())?;
        let ask = Ask { name, mode: mode(&args.mode)?, patience: args.wait_ms.map(Duration::from_millis) };
        let Some(lock) = self.wait(ask, progress)? else { return Ok(json!({})) };
        let grant = lock.grant();
        let granted = json!({ "granted": { "mode": format!("{:?}", grant.mode), "token": grant.token.0 } });
        let mut is_there = progress(granted);
        while is_there {
            if lock.is_lost() {
                return Err("the cluster has stopped: the lock protects nothing any more".into());
            }
            std::thread::sleep(LOOK_EVERY);
            is_there = progress(Value::Null);
        }
        Ok(json!({}))
    }
}

impl TakeLock {
    /// None: nobody is there any more to whom it could be granted.
    fn wait(&self, ask: Ask, progress: &mut dyn FnMut(Value) -> bool) -> Result<Option<Lock>, String> {
        let mut waiting = self.0.locks().session().ask(ask);
        loop {
            match waiting.wait(LOOK_EVERY) {
                Ok(answer) => return answer.map(Some).map_err(|error| error.to_string()),
                Err(_) if !progress(Value::Null) => return Ok(None),
                Err(again) => waiting = again,
            }
        }
    }
}

/// The mode of this name.
///
/// # Errors
/// There is none.
pub fn mode(name: &str) -> Result<Mode, String> {
    let is_it = |mode: &Mode| format!("{mode:?}").eq_ignore_ascii_case(name);
    Mode::ALL
        .into_iter()
        .find(is_it)
        .ok_or_else(|| format!("{name:?} is no mode: use NL, CR, CW, PR, PW or EX"))
}

struct ShowLocks {
    config: Arc<Config>,
    me: String,
    body: Arc<Body>,
}

impl Command for ShowLocks {
    fn name(&self) -> &'static str {
        "locks"
    }

    fn run(&self, _: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let surveys = self.body.locks().survey(SURVEY_WITHIN).map_err(|_| "a worker does not answer")?;
        let resources: Vec<_> = surveys.iter().map(|survey| self.show(survey)).collect();
        serde_json::to_value(resources).map_err(|error| error.to_string())
    }
}

impl ShowLocks {
    fn show(&self, survey: &Survey) -> LockedResource {
        let node = |id: plexus_base::NodeId| {
            self.config.nodes.get(id.index()).map_or_else(|| id.to_string(), |node| node.name.clone())
        };
        let granted = survey.granted.iter().map(|held| LockHolder {
            node: node(held.node),
            lock: held.lock,
            mode: format!("{:?}", held.mode),
            token: held.token.0,
        });
        let waiting = survey.waiting.iter().map(|wanted| LockWaiter {
            node: node(wanted.node),
            lock: wanted.lock,
            mode: format!("{:?}", wanted.mode),
            waited_ms: wanted.waited.0 / 1_000_000,
            converts: wanted.converts,
        });
        LockedResource {
            name: String::from_utf8_lossy(survey.name.bytes()).into_owned(),
            master: self.me.clone(),
            value: match survey.value {
                Validity::Unwritten => "unwritten",
                Validity::Valid => "valid",
                Validity::Lost => "lost",
            }
            .into(),
            granted: granted.collect(),
            waiting: waiting.collect(),
        }
    }
}
