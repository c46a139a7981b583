//! The prompt of `plexus sql` at a terminal: statements have a history, and Tab completes words.

use std::{
    cell::{OnceCell, RefCell},
    env,
    path::PathBuf,
};

use plexus_admin::{postgres::PostgresClient, sql::SqlAddress};
use rustyline::{
    CompletionType, Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::statement::{is_complete, is_exit};

/// The file of the history, in the home directory.
const HISTORY: &str = ".plexus_sql_history";

/// The words that a statement can have.
const WORDS: &str = "
    select word from pg_get_keywords()
    union select quote_ident(nspname) from pg_namespace
    union select quote_ident(relname) from pg_class where pg_table_is_visible(oid)
    union select quote_ident(attname) from pg_attribute join pg_class on attrelid = pg_class.oid
        where relkind in ('r', 'v', 'm') and attnum > 0 and not attisdropped
        and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
    union select proname from pg_proc where pg_function_is_visible(oid)";

/// The prompt of a session.
pub(super) struct Prompt {
    editor: Editor<Words, DefaultHistory>,
    /// There is none without a home directory.
    history: Option<PathBuf>,
}

impl Prompt {
    /// Makes a prompt. Words come from the node at this address.
    pub(super) fn new(address: SqlAddress) -> anyhow::Result<Self> {
        let config = Config::builder()
            .auto_add_history(true)
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Words { address, client: OnceCell::new() }));
        let history = env::home_dir().map(|home| home.join(HISTORY));
        // Before the first statement there is no file.
        history.as_ref().map(|path| editor.load_history(path));
        Ok(Self { editor, history })
    }

    /// Reads statements up to a semicolon; `None` at the end.
    pub(super) fn read(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline("plexus=> ") {
                Ok(text) if is_exit(&text) => return Ok(None),
                Ok(text) => {
                    // A history that cannot be written is no reason not to run the statement.
                    self.history.as_ref().map(|path| self.editor.append_history(path));
                    return Ok(Some(text));
                }
                // Ctrl-C leaves the statement.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Completes words, and tells where a statement ends.
struct Words {
    address: SqlAddress,
    /// A session of its own, so that the transaction of the user is left alone.
    client: OnceCell<Option<RefCell<PostgresClient>>>,
}

impl Words {
    /// Returns the words that begin with some characters. There are none without an answer.
    fn find(&self, begin: &str) -> Vec<String> {
        let connect = || PostgresClient::connect(&self.address, "plexus sql: words").ok().map(RefCell::new);
        let Some(client) = self.client.get_or_init(connect) else { return Vec::new() };
        let length = begin.len();
        let query = format!(
            "select * from ({WORDS}) words (word) where left(word, {length}) = '{}' order by word",
            begin.to_lowercase()
        );
        let rows = client.borrow_mut().run(&query).unwrap_or_default();
        // Names without quotes are the same in capitals.
        let is_capital = begin.chars().any(char::is_uppercase) && !begin.chars().any(char::is_lowercase);
        let word = |word: String| if is_capital { word.to_uppercase() } else { word };
        rows.into_iter().flatten().flatten().map(word).collect()
    }
}

impl Completer for Words {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let is_part = |character: char| character.is_ascii_alphanumeric() || "_$\"".contains(character);
        let before = &line[..position];
        let start = before.trim_end_matches(is_part).len();
        let mut found = if start == position { Vec::new() } else { self.find(&before[start..]) };
        if let [only] = &mut found[..] {
            only.push(' ');
        }
        Ok((start, found))
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        Ok(match text.trim().is_empty() || is_exit(text) || is_complete(text) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}
