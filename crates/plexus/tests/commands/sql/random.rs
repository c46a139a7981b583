//! Random statements over random tables, whose results PostgreSQL gives, too.

use std::{env, fmt::Write as _};

use plexus_sim::Random;

use super::*;

/// The types of expressions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Int,
    Text,
    Bool,
    /// With two digits behind the point, so that equal values look the same.
    Numeric,
    Date,
}

const TYPES: &[Type] = &[Type::Int, Type::Text, Type::Bool, Type::Numeric, Type::Date];

impl Type {
    const fn name(self) -> &'static str {
        match self {
            Self::Int => "int",
            Self::Text => "text",
            Self::Bool => "boolean",
            Self::Numeric => "numeric(12,2)",
            Self::Date => "date",
        }
    }

    const fn literals(self) -> &'static [&'static str] {
        match self {
            Self::Int => &["0", "1", "2", "3", "5", "-1", "-7", "12", "null::int"],
            Self::Text => &["'a'", "'b'", "'ab'", "'B'", "''", "'ö'", "'a_c'", "null::text"],
            Self::Bool => &["true", "false", "null::boolean"],
            Self::Numeric => &["0.00", "1.50", "-2.25", "100.00", "null::numeric"],
            Self::Date => &["date '2024-02-28'", "date '2023-12-31'", "date '2024-03-01'", "null::date"],
        }
    }
}

/// Something with columns that FROM names.
#[derive(Clone)]
struct Source {
    name: String,
    columns: Vec<(String, Type)>,
}

/// Makes statements. Each has one result, whatever its plan is.
struct Statements {
    random: Random,
    tables: Vec<Source>,
    names: usize,
}

impl Statements {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), tables: Vec::new(), names: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn one(&mut self, of: &[&str]) -> String {
        (*self.random.pick(of)).to_owned()
    }

    fn literal(&mut self, of: Type) -> String {
        self.one(of.literals())
    }

    fn name(&mut self, start: char) -> String {
        self.names += 1;
        format!("{start}{}", self.names)
    }

    /// Returns the statements that make three tables with rows and indexes.
    fn schema(&mut self) -> String {
        let mut text = String::new();
        for number in 0..3 {
            let mut columns = vec![("id".to_owned(), Type::Int)];
            for column in 0..2 + self.below(4) {
                columns.push((format!("c{column}"), *self.random.pick(TYPES)));
            }
            let table = Source { name: format!("t{number}"), columns };
            let all: Vec<_> =
                table.columns[1..].iter().map(|(name, of)| format!("{name} {}", of.name())).collect();
            _ = writeln!(text, "create table {} (id int primary key, {});", table.name, all.join(", "));
            for id in 0..self.below(25) {
                let values: Vec<_> = table.columns[1..].iter().map(|(_, of)| self.literal(*of)).collect();
                _ = writeln!(text, "insert into {} values ({id}, {});", table.name, values.join(", "));
            }
            for _ in 0..self.below(3) {
                let (first, second) = (self.column(&table).0, self.column(&table).0);
                let only = match self.below(4) {
                    0 => format!(" where {} is not null", self.column(&table).0),
                    _ => String::new(),
                };
                _ = writeln!(text, "create index on {} ({first}, {second}){only};", table.name);
            }
            self.tables.push(table);
        }
        text
    }

    fn column(&mut self, of: &Source) -> (String, Type) {
        self.random.pick(&of.columns).clone()
    }

    /// Returns an expression over the columns of `scope`.
    fn expression(&mut self, of: Type, scope: &[Source], depth: usize) -> String {
        let columns = scope.iter().flat_map(|source| {
            let of_type = source.columns.iter().filter(|(_, found)| *found == of);
            of_type.map(|(column, _)| format!("{}.{column}", source.name))
        });
        let columns: Vec<_> = columns.collect();
        if depth == 0 || self.random.percent(35) {
            return match columns.is_empty() || self.random.percent(25) {
                true => self.literal(of),
                false => self.random.pick(&columns).clone(),
            };
        }
        let part = |this: &mut Self, of| this.expression(of, scope, depth - 1);
        match self.below(8) {
            0 => {
                let (when, then, other) = (part(self, Type::Bool), part(self, of), part(self, of));
                return format!("case when {when} then {then} else {other} end");
            }
            1 => return format!("coalesce({}, {})", part(self, of), part(self, of)),
            2 => return format!("nullif({}, {})", part(self, of), part(self, of)),
            3 if of != Type::Bool => {
                let function = self.one(&["min", "max"]);
                let query = self.rows(&[of], scope, depth - 1);
                return format!("(select {function}(x.o0) from ({query}) x)");
            }
            _ => {}
        }
        match of {
            Type::Int => match self.below(5) {
                0 => format!("length({})", part(self, Type::Text)),
                1 => format!("({} % 7)", part(self, Type::Int)),
                2 => format!("(select count(*)::int from ({}) x)", self.rows(&[Type::Int], scope, depth - 1)),
                3 => format!("abs({})", part(self, Type::Int)),
                _ => {
                    format!("({} {} {})", part(self, Type::Int), self.one(&["+", "-"]), part(self, Type::Int))
                }
            },
            Type::Text => match self.below(4) {
                0 => format!("({} || {})", part(self, Type::Text), part(self, Type::Text)),
                1 => format!("upper({})", part(self, Type::Text)),
                2 => format!("left({}, 3)", part(self, Type::Text)),
                _ => format!("{}::text", part(self, Type::Int)),
            },
            Type::Numeric => match self.below(3) {
                0 => format!("{}::numeric(12,2)", part(self, Type::Int)),
                1 => format!(
                    "({} {} {})",
                    part(self, Type::Numeric),
                    self.one(&["+", "-"]),
                    part(self, Type::Numeric)
                ),
                _ => format!("greatest({}, {})", part(self, Type::Numeric), part(self, Type::Numeric)),
            },
            Type::Date => format!("({} + {})", part(self, Type::Date), part(self, Type::Int)),
            Type::Bool => self.condition(scope, depth - 1),
        }
    }

    fn condition(&mut self, scope: &[Source], depth: usize) -> String {
        let of = *self.random.pick(TYPES);
        let part = |this: &mut Self, of| this.expression(of, scope, depth);
        match self.below(12) {
            0 => format!("({} and {})", part(self, Type::Bool), part(self, Type::Bool)),
            1 => format!("({} or {})", part(self, Type::Bool), part(self, Type::Bool)),
            2 => format!("(not {})", part(self, Type::Bool)),
            3 => format!("({} is {}null)", part(self, of), self.one(&["", "not "])),
            4 => {
                let list = [self.literal(of), self.literal(of), part(self, of)].join(", ");
                format!("({} {}in ({list}))", part(self, of), self.one(&["", "not "]))
            }
            5 => format!("({} between {} and {})", part(self, of), part(self, of), part(self, of)),
            6 => {
                format!("({} like {})", part(self, Type::Text), self.one(&["'a%'", "'%b'", "'_'", "'a\\_%'"]))
            }
            7 if depth > 0 => {
                format!("({}exists ({}))", self.one(&["", "not "]), self.rows(&[of], scope, depth - 1))
            }
            8 if depth > 0 => {
                let (negated, query) = (self.one(&["", "not "]), self.rows(&[of], scope, depth - 1));
                format!("({} {negated}in ({query}))", part(self, of))
            }
            9 if depth > 0 => {
                let (operator, query) =
                    (self.one(&["= any", "> all", "<= any", "<> all"]), self.rows(&[of], scope, depth - 1));
                format!("({} {operator} ({query}))", part(self, of))
            }
            10 => {
                format!("({} is {}distinct from {})", part(self, of), self.one(&["", "not "]), part(self, of))
            }
            _ => {
                let operator = self.one(&["=", "=", "<", ">", "<=", ">=", "<>"]);
                format!("({} {operator} {})", part(self, of), part(self, of))
            }
        }
    }

    /// Returns what stands behind FROM, and adds it to `scope`.
    fn from(&mut self, scope: &mut Vec<Source>, depth: usize) -> String {
        let outer = scope.len();
        let mut text = String::new();
        for number in 0..=self.below(if depth == 0 { 2 } else { 3 }) {
            let join = ["cross", "inner", "left", "right", "full", "lateral"][self.below(6)];
            let name = self.name('s');
            let (item, columns) = if depth > 0 && self.random.percent(20) {
                let types = [Type::Int, *self.random.pick(TYPES)];
                let is_lateral = number > 0 && join == "lateral";
                let seen = if is_lateral { scope.as_slice() } else { &scope[..outer] }.to_vec();
                let query = self.rows(&types, &seen, depth - 1);
                let columns = (0..).map(|at| format!("o{at}")).zip(types).collect();
                (format!("{}({query})", if is_lateral { "lateral " } else { "" }), columns)
            } else {
                let table = self.random.pick(&self.tables).clone();
                (table.name, table.columns)
            };
            let source = Source { name: name.clone(), columns };
            if number == 0 {
                text = format!("{item} {name}");
                scope.push(source);
                continue;
            }
            // An equality, which FULL JOIN needs, and at random more.
            let left = self.random.pick(&scope[outer..]).clone();
            let same =
                left.columns.iter().flat_map(|left| source.columns.iter().map(move |right| (left, right)));
            let same: Vec<_> = same.filter(|((_, left), (_, right))| left == right).collect();
            let equal = match same.is_empty() {
                true => None,
                false => {
                    let ((of_left, _), (of_right, _)) = *self.random.pick(&same);
                    Some(format!("{}.{of_left} = {name}.{of_right}", left.name))
                }
            };
            // What ON may name.
            scope.push(source);
            let here = scope[outer..].to_vec();
            text = match (join, equal) {
                ("cross" | "lateral", _) | (_, None) => format!("{text} cross join {item} {name}"),
                ("full", Some(equal)) => format!("{text} full join {item} {name} on {equal}"),
                (_, Some(equal)) if self.random.percent(50) => {
                    format!("{text} {join} join {item} {name} on {equal}")
                }
                (_, Some(equal)) => format!(
                    "{text} {join} join {item} {name} on {equal} and {}",
                    self.expression(Type::Bool, &here, depth.min(1))
                ),
            };
        }
        text
    }

    /// Returns a query whose columns have these types and the names `o0`, `o1`, and so on. It may
    /// use the columns of `outer`.
    fn rows(&mut self, types: &[Type], outer: &[Source], depth: usize) -> String {
        if depth > 0 && self.random.percent(10) {
            let operator = self.one(&["union", "union all", "intersect", "except", "except all"]);
            let (one, two) = (self.rows(types, outer, depth - 1), self.rows(types, outer, depth - 1));
            return format!("({one}) {operator} ({two})");
        }
        let mut scope = outer.to_vec();
        let from = self.from(&mut scope, depth);
        let condition = match self.random.percent(60) {
            true => format!(" where {}", self.expression(Type::Bool, &scope, depth)),
            false => String::new(),
        };
        let form = self.below(5);
        if form == 0 {
            return self.groups(types, &scope[outer.len()..], &format!("from {from}{condition}"));
        }
        let values: Vec<_> = (0..)
            .zip(types)
            .map(|(at, of)| match form == 1 && *of == Type::Int {
                true => format!("{} o{at}", self.window(&scope, depth)),
                false => format!("{} o{at}", self.expression(*of, &scope, depth)),
            })
            .collect();
        let distinct = if self.random.percent(15) { "distinct " } else { "" };
        format!("select {distinct}{} from {from}{condition}", values.join(", "))
    }

    fn window(&mut self, scope: &[Source], depth: usize) -> String {
        let value = self.expression(Type::Int, scope, depth.min(1));
        let function = match self.below(4) {
            0 => "rank()".to_owned(),
            1 => "count(*)".to_owned(),
            2 => format!("max({value})"),
            _ => format!("sum({value})"),
        };
        let of = *self.random.pick(TYPES);
        let parts = self.expression(of, scope, depth.min(1));
        let order = self.expression(Type::Int, scope, depth.min(1));
        format!("({function} over (partition by {parts} order by {order}))::int")
    }

    /// Returns a query with groups of the columns of `scope`.
    fn groups(&mut self, types: &[Type], scope: &[Source], from: &str) -> String {
        let mut keys = Vec::new();
        for _ in 0..1 + self.below(2) {
            let source = self.random.pick(scope).clone();
            let (column, of) = self.column(&source);
            keys.push((format!("{}.{column}", source.name), of));
        }
        let mut values = Vec::new();
        for (at, of) in types.iter().enumerate() {
            let key = keys.iter().find(|(_, found)| found == of).map(|(key, _)| key.clone());
            let inner = self.expression(*of, scope, 1);
            let filter = match self.random.percent(20) {
                true => format!(" filter (where {})", self.expression(Type::Bool, scope, 1)),
                false => String::new(),
            };
            let distinct = self.one(&["", "distinct "]);
            let value = match (of, self.below(4)) {
                (_, 0 | 1) if key.is_some() => key.unwrap_or_default(),
                (Type::Int, 2) => format!("(count({distinct}{inner}){filter})::int"),
                (Type::Int, 3) => format!("(sum({distinct}{inner}){filter})::int"),
                (Type::Bool, _) => format!("{}({inner}){filter}", self.one(&["bool_and", "bool_or"])),
                (Type::Text, 2) => {
                    // The type of a literal would be another one in each place.
                    format!("string_agg({distinct}({inner})::text, ',' order by ({inner})::text){filter}")
                }
                (Type::Numeric, 2) => format!("round(avg({inner}){filter}, 2)"),
                _ => format!("{}({inner}){filter}", self.one(&["min", "max"])),
            };
            values.push(format!("{value} o{at}"));
        }
        let by: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
        let by = match self.below(6) {
            0 => format!("rollup ({})", by.join(", ")),
            1 => format!("cube ({})", by.join(", ")),
            _ => by.join(", "),
        };
        let having = if self.random.percent(25) { " having count(*) > 1" } else { "" };
        format!("select {} {from} group by {by}{having}", values.join(", "))
    }

    /// Returns a statement, without its semicolon.
    fn statement(&mut self) -> String {
        if self.random.percent(15) {
            return self.change();
        }
        let types: Vec<_> = (0..=self.below(3)).map(|_| *self.random.pick(TYPES)).collect();
        let depth = 1 + self.below(2);
        let query = match self.random.percent(15) {
            true => {
                let name = self.name('w');
                let inner = self.rows(&types, &[], depth - 1);
                let columns = (0..).map(|at| format!("o{at}")).zip(types.clone()).collect();
                self.tables.push(Source { name: name.clone(), columns });
                let query = self.rows(&types, &[], depth);
                self.tables.pop();
                format!("with {name} as ({inner}) {query}")
            }
            false => self.rows(&types, &[], depth),
        };
        let order: Vec<_> =
            (1..=types.len()).map(|at| format!("{at}{}", self.one(&["", " desc", " nulls first"]))).collect();
        let limit = self.one(&["", "", "", " limit 5", " limit 3 offset 2"]);
        format!("{query} order by {}{limit}", order.join(", "))
    }

    /// Returns a statement that changes rows of a table.
    fn change(&mut self) -> String {
        let (table, other) = (self.random.pick(&self.tables).clone(), self.random.pick(&self.tables).clone());
        let (name, from) = (&table.name, &other.name);
        let other = Source { name: "u".into(), ..other.clone() };
        let (column, of) = self.random.pick(&table.columns[1..]).clone();
        let only = [table.clone()];
        let condition = self.expression(Type::Bool, &only, 2);
        match self.below(4) {
            0 => format!("delete from {name} where {condition} and {name}.id % 3 = 0"),
            1 => {
                let types = table.columns[1..].iter().map(|(_, of)| *of);
                let values: Vec<_> =
                    types.map(|of| self.expression(of, std::slice::from_ref(&other), 1)).collect();
                let action = self.one(&["nothing", &format!("update set {column} = excluded.{column}")]);
                let values = values.join(", ");
                format!(
                    "insert into {name} select u.id + 10, {values} from {from} u on conflict (id) do {action}"
                )
            }
            // Each row meets at most one of the other table.
            2 => {
                let value = self.expression(of, &[table.clone(), other], 1);
                format!("update {name} set {column} = {value} from {from} u where u.id = {name}.id")
            }
            _ => format!("update {name} set {column} = {} where {condition}", self.expression(of, &only, 2)),
        }
    }
}

/// Runs a script, which prints a line `-- N` before its statement N. Returns what each statement
/// has printed, and its errors.
fn outputs(mut server: Command, script: &Path) -> Vec<String> {
    let Output { stdout, stderr, .. } = server.args(["-X", "-At", "-f"]).arg(script).output().unwrap();
    let parts = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    let [rows, errors] = parts.each_ref().map(|text| text.split("-- ").collect::<Vec<_>>());
    assert_eq!(rows.len(), errors.len(), "a server has ended");
    // Errors begin with the name and line of the script.
    rows.iter()
        .zip(errors)
        .map(|(rows, error)| format!("{rows}{}", &error[error.find('\n').unwrap_or(0)..]))
        .collect()
}

/// `RANDOM_SCHEMAS` is the number of schemas, with 40 statements each, and `RANDOM_SEED` the first.
#[test]
fn random_statements_have_the_results_of_postgresql() {
    let (Some(psql), Some(oracle)) = (postgresql("psql"), Oracle::start()) else { return };
    let cluster = cluster();
    let number = |name, default| env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, count) = (number("RANDOM_SEED", 1), number("RANDOM_SCHEMAS", 6));
    let script = cluster.parent().join("random.sql");
    let (mut different, mut failed) = (Vec::new(), 0);
    for seed in first..first + count {
        let mut source = Statements::new(seed);
        let mut text = "\\set VERBOSITY sqlstate\nset statement_timeout = '60s';\n".to_owned();
        text.push_str(&source.schema());
        let statements: Vec<_> = (0..40).map(|_| source.statement()).collect();
        for (number, statement) in statements.iter().enumerate() {
            _ = writeln!(text, "\\echo -- {number}\n\\warn -- {number}\n{statement};");
        }
        for table in 0..3 {
            _ = writeln!(text, "\\echo -- t{table}\n\\warn -- t{table}\ntable t{table} order by id;");
        }
        fs::write(&script, text).unwrap();
        let server = |server: usize, database: &str| {
            let mut command = if server == 1 { oracle.client(&psql) } else { client(&psql, &cluster, 1) };
            command.env("PGDATABASE", database);
            command
        };
        let name = format!("random{seed}");
        let [our, their] = [0, 1].map(|at| {
            let mut create = server(at, "postgres");
            create.args(["-Xq", "-c", &format!("create database {name}")]);
            said(create);
            outputs(server(at, &name), &script)
        });
        // The disks are small.
        let mut drop = server(0, "postgres");
        drop.args(["-Xq", "-c", &format!("drop database {name}")]);
        said(drop);
        failed += their.iter().filter(|output| output.contains("ERROR")).count();
        for (at, (our, their)) in our.iter().zip(&their).enumerate() {
            if our != their {
                let statement = at.checked_sub(1).and_then(|at| statements.get(at));
                different.push(format!("seed {seed}: {statement:?}\n{our}\ninstead of\n{their}"));
            }
        }
    }
    let count = count as usize * 40;
    assert!(failed * 20 <= count, "{failed} of {count} statements fail on PostgreSQL");
    assert!(
        different.is_empty(),
        "{} differ; the first:\n{}",
        different.len(),
        different[..different.len().min(3)].join("\n\n")
    );
}
