//! EXPLAIN: the plan of a statement as text or JSON, and with ANALYZE what its run has taken.
//!
//! Costs are not shown: there are none. The rows and the time are those of the whole statement.

use std::time::Instant;

use serde_json::{Map, Value as Json, json};
use sqlparser::ast;

use super::{
    Session,
    run::{Done, Plan, PlanKind, Tag},
};
use crate::{
    bind::{
        from::{Relation, Source},
        query::{Query, QueryBody},
        select::{ResultColumn, Select},
    },
    dml::ChangeKind,
    error::{Result, SqlError, code, fail},
    exec,
    parse::folded,
    types::{Type, Value},
};

/// The options of EXPLAIN.
#[derive(Default, Debug)]
pub(super) struct ExplainOptions {
    /// The statement runs.
    pub(super) runs: bool,
    is_verbose: bool,
    shows_times: bool,
    shows_summary: bool,
    is_json: bool,
}

/// A statement whose plan is shown.
#[derive(Debug)]
pub(super) struct Explained {
    pub(super) plan: Plan,
    pub(super) options: ExplainOptions,
}

impl ExplainOptions {
    pub(super) fn read(runs: bool, is_verbose: bool, all: &[ast::UtilityOption]) -> Result<Self> {
        let mut options = Self { runs, is_verbose, ..Self::default() };
        let (mut times, mut summary) = (None, None);
        let syntax = |message: String| Err(SqlError::new(code::SYNTAX_ERROR, message));
        for ast::UtilityOption { name, arg } in all {
            let name = folded(name);
            let text = match arg {
                None => None,
                Some(ast::Expr::Identifier(word)) => Some(folded(word)),
                Some(ast::Expr::Value(value)) => match &value.value {
                    ast::Value::SingleQuotedString(text) => Some(text.clone()),
                    other => Some(other.to_string()),
                },
                Some(other) => return Err(SqlError::unsupported(format!("the option {name} {other}"))),
            };
            let boolean = match text.as_deref().map(str::to_ascii_lowercase).as_deref() {
                None | Some("true" | "on" | "1") => Some(true),
                Some("false" | "off" | "0") => Some(false),
                Some(_) => None,
            };
            if name == "format" {
                options.is_json = match text.as_deref() {
                    Some("text") => false,
                    Some("json") => true,
                    Some(other @ ("xml" | "yaml")) => {
                        return Err(SqlError::unsupported(format!("EXPLAIN with the format {other}")));
                    }
                    Some(other) => {
                        fail!(
                            INVALID_PARAMETER_VALUE,
                            "unrecognized value for EXPLAIN option \"format\": \"{other}\""
                        );
                    }
                    None => return syntax("format requires a parameter".into()),
                };
                continue;
            }
            let known = ["analyze", "verbose", "costs", "timing", "summary", "buffers", "settings", "wal"];
            if !known.contains(&name.as_str()) {
                return syntax(format!("unrecognized EXPLAIN option \"{name}\""));
            }
            let Some(boolean) = boolean else { return syntax(format!("{name} requires a Boolean value")) };
            match name.as_str() {
                "analyze" => options.runs = boolean,
                "verbose" => options.is_verbose = boolean,
                "timing" => times = Some(boolean),
                "summary" => summary = Some(boolean),
                "costs" => {}
                _ if boolean => return Err(SqlError::unsupported(format!("EXPLAIN with {name}"))),
                _ => {}
            }
        }
        if times == Some(true) && !options.runs {
            fail!(INVALID_PARAMETER_VALUE, "EXPLAIN option TIMING requires ANALYZE");
        }
        options.shows_times = options.runs && times.unwrap_or(true);
        options.shows_summary = summary.unwrap_or(options.runs);
        Ok(options)
    }
}

/// A step of a plan.
struct Step {
    /// What it is in PostgreSQL, for programs.
    kind: &'static str,
    /// What it is here, for people.
    text: String,
    facts: Vec<(&'static str, String)>,
    /// The steps whose rows it gets, and how much deeper than its own line each of theirs is.
    inputs: Vec<(usize, Step)>,
}

impl Step {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), facts: Vec::new(), inputs: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.facts.push((name, value.into()));
        self
    }

    fn over(mut self, depth: usize, inputs: impl IntoIterator<Item = Step>) -> Self {
        self.inputs.extend(inputs.into_iter().map(|input| (depth, input)));
        self
    }

    fn lines(&self, depth: usize, lines: &mut Vec<String>) {
        // A join stands in the line of its inner side.
        if !self.text.is_empty() {
            lines.push(format!("{}{}", "  ".repeat(depth), self.text));
        }
        self.inputs.iter().for_each(|(deeper, input)| input.lines(depth + deeper, lines));
    }

    fn json(&self) -> Map<String, Json> {
        let mut step = Map::new();
        step.insert("Node Type".into(), self.kind.into());
        for (name, value) in &self.facts {
            step.insert((*name).into(), value.as_str().into());
        }
        if !self.inputs.is_empty() {
            let inputs = self.inputs.iter().map(|(_, input)| Json::Object(input.json()));
            step.insert("Plans".into(), inputs.collect());
        }
        step
    }
}

fn step_of(plan: &PlanKind) -> Step {
    match plan {
        PlanKind::Select(query) => of_query(query),
        PlanKind::Declare(declared) => of_query(&declared.query),
        PlanKind::Change(change) => {
            let (word, sources) = match &change.kind {
                ChangeKind::Insert { .. } => ("Insert", &[][..]),
                ChangeKind::Update { rows, .. } => ("Update", rows.sources()),
                ChangeKind::Delete { rows } => ("Delete", rows.sources()),
                ChangeKind::Merge(merge) => ("Merge", &merge.sources[..]),
            };
            Step::new("ModifyTable", format!("{word} on {}", change.table.name))
                .with("Operation", word)
                .with("Relation Name", &*change.table.name)
                .over(0, of_sources(sources))
        }
        PlanKind::Explain(_) | PlanKind::Other(_) => Step::new("Result", "Result"),
    }
}

fn of_query(query: &Query) -> Step {
    match &query.body {
        QueryBody::Values(_) => Step::new("Values Scan", "Values"),
        QueryBody::Change(change) => Step::new("ModifyTable", format!("Change of {}", change.table.name))
            .with("Relation Name", &*change.table.name),
        QueryBody::Set(set) => Step::new("Append", set.operator.to_string())
            .over(1, [of_query(&set.left.0), of_query(&set.right.0)]),
        QueryBody::Select(select) => of_select(select),
    }
}

fn of_select(select: &Select) -> Step {
    let mut step = of_sources(&select.sources).unwrap_or_else(|| Step::new("Result", "Result"));
    let above = [
        (select.groups.is_some(), "Aggregate", "Aggregate"),
        (!select.windows.is_empty(), "WindowAgg", "Window functions"),
        (!select.order.is_empty(), "Sort", "Sort"),
    ];
    for (_, kind, text) in above.into_iter().filter(|(is_there, ..)| *is_there) {
        step = Step::new(kind, text).over(0, [step]);
    }
    step
}

/// Returns the joins of sources; each inner side is a level below the one before.
fn of_sources(sources: &[Source]) -> Option<Step> {
    let mut joined: Option<Step> = None;
    for (at, source) in sources.iter().enumerate() {
        let mut step = of_source(source);
        joined = Some(match joined {
            None => step,
            Some(outer) => {
                let (word, kind) = match source.outer {
                    None => ("Join", "Inner"),
                    Some(_) if source.is_full => ("Full join", "Full"),
                    Some(_) => ("Left join", "Left"),
                };
                step.text = format!("{word} with {}", step.text);
                Step::new("Nested Loop", "").with("Join Type", kind).over(0, [outer]).over(at, [step])
            }
        });
    }
    joined
}

fn of_source(source: &Source) -> Step {
    let path = &source.path;
    let mut step = match &source.relation {
        Relation::Table(table) => {
            let (kind, text) = match path.index {
                _ if path.is_point(table) => {
                    ("Index Scan", format!("Row of {} by its primary key", table.name))
                }
                Some(index) => {
                    let index = &table.indexes[index].name;
                    ("Index Scan", format!("Scan of index {index} of {}", table.name))
                }
                None if !path.any_of.is_empty() => {
                    ("Bitmap Heap Scan", format!("Scan of rows of {} by several keys", table.name))
                }
                None if path.columns.is_empty() => {
                    ("Seq Scan", format!("Scan of all rows of {}", table.name))
                }
                None => ("Index Scan", format!("Scan of rows of {} by its primary key", table.name)),
            };
            let index = match path.index {
                Some(index) => Some(table.indexes[index].name.clone()),
                None => table.primary.as_ref().map(|key| key.name.clone()),
            };
            let step = Step::new(kind, text).with("Relation Name", &*table.name);
            index
                .filter(|_| kind == "Index Scan")
                .into_iter()
                .fold(step, |step, index| step.with("Index Name", index))
        }
        Relation::System(table) => {
            Step::new("Seq Scan", format!("Scan of {}", table.name)).with("Relation Name", table.name)
        }
        Relation::Sequence(sequence) => Step::new("Seq Scan", format!("State of {}", sequence.name))
            .with("Relation Name", &*sequence.name),
        Relation::Query { query, .. } => Step::new("Subquery Scan", "Subquery").over(1, [of_query(query)]),
        Relation::Shared(_) | Relation::Working(_) => Step::new("CTE Scan", "Query of WITH"),
        Relation::Functions(calls, _) => {
            let name = calls[0].function.name();
            Step::new("Function Scan", format!("Function {name}")).with("Function Name", name)
        }
        Relation::Joined(sources) => Step::new("Result", "Joined tables").over(1, of_sources(sources)),
    };
    if path.list.is_some() {
        step.text.push_str(", of each value of a list");
    }
    if path.is_backward {
        step.text.push_str(", backward");
        step = step.with("Scan Direction", "Backward");
    }
    step
}

impl Explained {
    pub(super) fn columns(&self) -> Vec<ResultColumn> {
        let of = if self.options.is_json { Type::Json } else { Type::Text };
        vec![ResultColumn { name: "QUERY PLAN".into(), of }]
    }
}

impl Session<'_> {
    /// Shows a plan, and runs the statement if that is wanted.
    pub(super) async fn explain(&mut self, explained: &Explained, values: &[Value]) -> Result<Done> {
        let Explained { plan, options } = explained;
        let step = match &plan.kind {
            PlanKind::Select(query) if let QueryBody::Select(select) = &query.body => {
                let mut select = (**select).clone();
                if let Some(first) = select.sources.first_mut() {
                    // What fails here is told when the statement runs.
                    let _ = exec::choose_path(&mut self.statement(values)?, first).await;
                }
                of_select(&select)
            }
            kind => step_of(kind),
        };
        let begun = Instant::now();
        let mut count = 0u64;
        if options.runs {
            let done = self.run_plan(plan, values).await?;
            let rows = done.rows.map(|(_, rows)| rows);
            rows.into_iter().flatten().try_for_each(|row| row.map(|_| count += 1))?;
        }
        let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
        let output: Vec<String> = plan.columns().into_iter().map(|column| column.name).collect();
        let is_verbose = options.is_verbose && !output.is_empty();
        let mut lines = Vec::new();
        if options.is_json {
            let mut top = step.json();
            if options.runs {
                top.insert("Actual Rows".into(), count.into());
                top.insert("Actual Loops".into(), 1.into());
            }
            if options.shows_times {
                top.insert("Actual Total Time".into(), milliseconds.into());
            }
            if is_verbose {
                top.insert("Output".into(), output.into());
            }
            let mut all = json!({ "Plan": top });
            if options.runs && options.shows_summary {
                all["Execution Time"] = milliseconds.into();
            }
            let text = serde_json::to_string_pretty(&[all]);
            lines.push(text.map_err(|error| SqlError::new(code::SYSTEM_ERROR, error.to_string()))?);
        } else {
            step.lines(0, &mut lines);
            let mut actual = Vec::new();
            if options.shows_times {
                actual.push(format!("time={milliseconds:.3}"));
            }
            if options.runs {
                actual.push(format!("rows={count} loops=1"));
                lines[0].push_str(&format!(" (actual {})", actual.join(" ")));
            }
            if is_verbose {
                lines.insert(1, format!("  Output: {}", output.join(", ")));
            }
            if options.runs && options.shows_summary {
                lines.push(format!("Execution Time: {milliseconds:.3} ms"));
            }
        }
        let rows: Vec<_> = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
        Ok(Done { tag: Tag::Plain("EXPLAIN"), rows: Some((explained.columns(), rows.into())) })
    }
}
