//! The suites of clients: their packages, and how their tests are run.

/// A suite of tests that a client of PostgreSQL has in its source distribution.
pub(super) struct Suite {
    /// The name of the package on PyPI, in small letters.
    pub name: &'static str,
    /// The version whose tests are run.
    pub version: &'static str,
    /// More packages, each with its version, with spaces between them.
    pub packages: &'static str,
    /// The statements that prepare a server.
    pub prepare: &'static str,
    /// The folder of the source distribution in which the tests are run.
    pub folder: &'static str,
    /// A program of the environment with its arguments; servers are known from `PGHOST` and so on.
    pub command: &'static str,
    /// The tests, for readers of the document.
    pub tests: &'static str,
    /// Tests that are not run, and the reason, for readers of the document.
    pub left_out: &'static str,
}

/// All suites, in the order of the table.
pub(super) const SUITES: [Suite; 3] = [
    Suite {
        name: "sqlalchemy",
        version: "2.0.58",
        packages: "psycopg[binary]==3.3.9 pytest==9.0.3",
        prepare: "create schema test_schema; create schema test_schema_2",
        folder: ".",
        command: "pytest -p compat_pytest -q --maxfail=1000000 --dburi postgresql+psycopg:///postgres \
                  test/dialect/test_suite.py",
        tests: "the suite for dialects, with psycopg 3",
        left_out: "the tests of PostgreSQL's dialect itself: many need extensions",
    },
    Suite {
        name: "django",
        version: "5.2.19",
        packages: "psycopg[binary]==3.3.9",
        prepare: "",
        folder: "tests",
        command: "python runtests.py --settings compat_django --parallel 1 --noinput aggregation \
                  aggregation_regress annotations backends basic bulk_create constraints custom_lookups \
                  datatypes delete distinct_on_fields expressions expressions_case \
                  expressions_window get_or_create indexes introspection lookup many_to_many \
                  migrations ordering queries raw_query schema select_for_update \
                  transaction_hooks transactions update",
        tests: "28 parts about queries, transactions and schemas, with psycopg 3",
        left_out: "`model_fields`, `inspectdb` and `db_functions`: what all their tests need first has \
                   collations of ICU or extensions, which Plexus refuses; other parts were not tried",
    },
    Suite {
        name: "asyncpg",
        version: "0.31.0",
        packages: "pytest==9.0.3 distro==1.9.0",
        prepare: "",
        folder: ".",
        // The package itself is the one in the environment: that of the source is not compiled.
        command: "pytest -p compat_pytest -q --ignore tests/test__sourcecode.py \
                  --ignore tests/test__environment.py tests",
        tests: "all that need a server",
        left_out: "tests of source code and of versions in the environment",
    },
];

/// Clients whose packages have no tests, each with its package.
pub(super) const WITHOUT_TESTS: [(&str, &str); 2] =
    [("psycopg", "psycopg 3.3.9 on PyPI"), ("node-postgres", "pg 8.23.1 of npm")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_versions_are_pinned_and_names_are_unique() {
        for (index, suite) in SUITES.iter().enumerate() {
            assert!(suite.packages.split(' ').all(|package| package.contains("==")), "{}", suite.name);
            assert!(SUITES[index + 1..].iter().all(|other| other.name != suite.name), "{}", suite.name);
        }
    }
}
