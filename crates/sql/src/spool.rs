//! The rows of a result, in their order: in memory while they are few, else in temporary files.
//!
//! When the rows in memory take [`MOST_BYTES`], a thread sorts them and writes them to a file,
//! which has no name, so it ends with its session. [`MOST_FILES`] files become one. At the end all
//! are merged.

use std::{
    cmp::Ordering,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use plexus_interconnect::executor;

use crate::{
    error::{Result, SqlError, code},
    types::{Value, encode},
};

/// The bytes of rows in memory for which they go to a file; twice as many can be in memory.
const MOST_BYTES: usize = 16 << 20;

/// The files that become one.
const MOST_FILES: usize = 64;

/// The files that are written at once, before a row waits for the disk.
const MOST_WRITING: usize = 4;

/// The rows that are passed over before other tasks go on.
const PASSED: usize = 256;

/// The bytes of a file that are read at once.
const READ_BYTES: usize = 32 << 10;

/// The time between two looks whether a file is written.
const LOOK: Duration = Duration::from_millis(1);

/// The place of a value among others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Direction {
    pub(crate) is_descending: bool,
    pub(crate) nulls_first: bool,
}

impl Direction {
    /// The direction of keys that are bytes.
    pub(crate) const RISING: Self = Self { is_descending: false, nulls_first: false };

    fn compare(self, one: &Value, other: &Value) -> Ordering {
        match (one.is_null(), other.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) if self.nulls_first => Ordering::Less,
            (true, false) => Ordering::Greater,
            (false, true) if self.nulls_first => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ if self.is_descending => other.compare(one),
            _ => one.compare(other),
        }
    }
}

/// A row, and the values by which it is ordered.
pub(crate) struct OrderedRow {
    pub(crate) order: Vec<Value>,
    pub(crate) row: Vec<Value>,
}

impl OrderedRow {
    fn compare(&self, other: &Self, order: &[Direction]) -> Ordering {
        compare_rows(&self.order, &other.order, order)
    }
}

/// Compares values in the order of these directions.
pub(crate) fn compare_rows(one: &[Value], other: &[Value], order: &[Direction]) -> Ordering {
    let pairs = order.iter().zip(one.iter().zip(other));
    pairs
        .map(|(by, (one, other))| by.compare(one, other))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Returns the bytes that values take in memory.
pub(crate) fn bytes_of(values: &[Value]) -> usize {
    let long = |value: &Value| match value {
        Value::Text(text) | Value::Json(text) | Value::Padded(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Array(array) => bytes_of(&array.values),
        _ => 0,
    };
    size_of_val(values) + values.iter().map(long).sum::<usize>()
}

fn failed(error: &io::Error) -> SqlError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => code::DISK_FULL,
        _ => code::SYSTEM_ERROR,
    };
    SqlError::new(code, format!("a temporary file of this statement: {error}"))
}

/// A file that a thread writes.
enum Written {
    Running(JoinHandle<Result<File>>),
    Done(File),
}

impl Written {
    fn start(write: impl FnOnce() -> Result<File> + Send + 'static) -> Result<Self> {
        let thread = std::thread::Builder::new().name("sql-spool".into()).spawn(write);
        thread.map(Self::Running).map_err(|error| failed(&error))
    }

    fn is_running(&self) -> bool {
        matches!(self, Self::Running(thread) if !thread.is_finished())
    }

    fn wait(self) -> Result<File> {
        match self {
            Self::Done(file) => Ok(file),
            Self::Running(thread) => {
                let failed =
                    |_| Err(SqlError::new(code::SYSTEM_ERROR, "the thread of a temporary file failed"));
                thread.join().unwrap_or_else(failed)
            }
        }
    }
}

/// Rows that are collected.
pub(crate) struct Spool {
    directory: Arc<Path>,
    order: Arc<[Direction]>,
    rows: Vec<OrderedRow>,
    bytes: usize,
    /// The files, those with the first rows first, and how often the rows of each were merged.
    files: Vec<(Written, u32)>,
}

impl Spool {
    /// Makes an empty one. Its files are in `directory`; without an order rows stay in that in
    /// which they come.
    pub(crate) fn new(directory: &Arc<Path>, order: impl IntoIterator<Item = Direction>) -> Self {
        let (directory, order) = (directory.clone(), order.into_iter().collect());
        Self { directory, order, rows: Vec::new(), bytes: 0, files: Vec::new() }
    }

    /// Adds a row. Waits for the disk if rows come faster than it takes them.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn push(&mut self, row: OrderedRow) -> Result<()> {
        self.bytes += size_of::<OrderedRow>() + bytes_of(&row.order) + bytes_of(&row.row);
        self.rows.push(row);
        if self.bytes < MOST_BYTES {
            return Ok(());
        }
        let is_writing = |(file, times): &(Written, u32)| *times == 0 && file.is_running();
        let mut writing = (0..self.files.len()).filter(|at| is_writing(&self.files[*at]));
        if let (Some(first), Some(_)) = (writing.next(), writing.nth(MOST_WRITING - 2)) {
            let (file, times) = self.files.remove(first);
            self.files.insert(first, (Written::Done(file.wait()?), times));
        }
        self.merge_files()?;
        self.bytes = 0;
        let (directory, order) = (self.directory.clone(), self.order.clone());
        let mut rows = std::mem::take(&mut self.rows);
        let written = Written::start(move || {
            sort(&mut rows, &order);
            let mut rows = rows.into_iter();
            write(&directory, || Ok(rows.next()))
        })?;
        self.files.push((written, 0));
        Ok(())
    }

    /// Lets a thread make one file of the last ones, if these are many.
    fn merge_files(&mut self) -> Result<()> {
        while let Some(&(_, times)) = self.files.last() {
            let same = self.files.iter().rev().take_while(|(_, other)| *other == times).count();
            if same < MOST_FILES {
                break;
            }
            let files = self.files.split_off(self.files.len() - same);
            let (directory, order) = (self.directory.clone(), self.order.clone());
            let merged = Written::start(move || {
                let files = files.into_iter().map(|(file, _)| file.wait()).collect::<Result<_>>()?;
                let mut merge = Merge::new(files, Vec::new(), order)?;
                write(&directory, || merge.next())
            })?;
            self.files.push((merged, times + 1));
        }
        Ok(())
    }

    /// Returns all rows in their order.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) async fn rows(mut self) -> Result<Rows> {
        while self.files.iter().any(|(file, _)| file.is_running()) {
            executor::sleep(LOOK).await;
        }
        let files = self.files.into_iter().map(|(file, _)| file.wait()).collect::<Result<Vec<_>>>()?;
        sort(&mut self.rows, &self.order);
        if files.is_empty() {
            return Ok(Rows::new(Source::Memory(self.rows.into_iter())));
        }
        Ok(Rows::new(Source::Merge(Merge::new(files, self.rows, self.order)?)))
    }
}

fn sort(rows: &mut [OrderedRow], order: &[Direction]) {
    if !order.is_empty() {
        rows.sort_by(|one, other| one.compare(other, order));
    }
}

fn write(directory: &Path, mut next: impl FnMut() -> Result<Option<OrderedRow>>) -> Result<File> {
    let file = tempfile::tempfile_in(directory).map_err(|error| failed(&error))?;
    let mut file = BufWriter::new(file);
    while let Some(OrderedRow { order, row }) = next()? {
        for part in [encode::row(&order), encode::row(&row)] {
            let length = (part.len() as u32).to_le_bytes();
            let written = file.write_all(&length).and_then(|()| file.write_all(&part));
            written.map_err(|error| failed(&error))?;
        }
    }
    let file = file.into_inner().map_err(io::IntoInnerError::into_error);
    file.and_then(|mut file| file.rewind().map(|()| file)).map_err(|error| failed(&error))
}

/// Rows in their order.
enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<OrderedRow>),
}

impl Run {
    fn next(&mut self) -> Result<Option<OrderedRow>> {
        let file = match self {
            Self::Memory(rows) => return Ok(rows.next()),
            Self::File(file) => file,
        };
        let mut part = |is_first| -> Result<Option<Vec<Value>>> {
            let mut length = [0; 4];
            match file.read_exact(&mut length) {
                Ok(()) => {}
                Err(error) if is_first && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(failed(&error)),
            }
            let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
            file.read_exact(&mut bytes).map_err(|error| failed(&error))?;
            encode::read_all(&bytes).map(Some)
        };
        let Some(order) = part(true)? else { return Ok(None) };
        Ok(Some(OrderedRow { order, row: part(false)?.unwrap_or_default() }))
    }
}

struct Merge {
    runs: Vec<Run>,
    /// The first row of each run that has some left, the least one last.
    heads: Vec<(OrderedRow, usize)>,
    order: Arc<[Direction]>,
}

impl Merge {
    /// Merges files and the rows behind them.
    fn new(files: Vec<File>, last: Vec<OrderedRow>, order: Arc<[Direction]>) -> Result<Self> {
        let file = |file| Run::File(BufReader::with_capacity(READ_BYTES, file));
        let runs = files.into_iter().map(file).chain([Run::Memory(last.into_iter())]).collect();
        let mut merge = Self { runs, heads: Vec::new(), order };
        (0..merge.runs.len()).try_for_each(|run| merge.take_head(run))?;
        Ok(merge)
    }

    fn take_head(&mut self, run: usize) -> Result<()> {
        let Some(head) = self.runs[run].next()? else { return Ok(()) };
        // Of equal rows those of earlier runs are first.
        let is_later =
            |(other, of): &(OrderedRow, usize)| other.compare(&head, &self.order).then(of.cmp(&run)).is_gt();
        let at = self.heads.partition_point(is_later);
        self.heads.insert(at, (head, run));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<OrderedRow>> {
        let Some((head, run)) = self.heads.pop() else { return Ok(None) };
        self.take_head(run)?;
        Ok(Some(head))
    }
}

enum Source {
    Memory(std::vec::IntoIter<OrderedRow>),
    Plain(std::vec::IntoIter<Vec<Value>>),
    Merge(Merge),
}

/// The rows of a result that are left.
pub(crate) struct Rows {
    source: Source,
    most: usize,
}

impl From<Vec<Vec<Value>>> for Rows {
    fn from(rows: Vec<Vec<Value>>) -> Self {
        Self::new(Source::Plain(rows.into_iter()))
    }
}

impl Rows {
    fn new(source: Source) -> Self {
        Self { source, most: usize::MAX }
    }

    /// Leaves rows out at the begin, and gives at most so many.
    pub(crate) async fn part(mut self, skip: usize, most: usize) -> Result<Self> {
        for passed in 1..=skip {
            if self.pull()?.is_none() {
                break;
            }
            if passed.is_multiple_of(PASSED) {
                executor::yield_now().await;
            }
        }
        Ok(Self { most, ..self })
    }

    fn pull(&mut self) -> Result<Option<Vec<Value>>> {
        match &mut self.source {
            Source::Memory(rows) => Ok(rows.next().map(|row| row.row)),
            Source::Plain(rows) => Ok(rows.next()),
            Source::Merge(merge) => Ok(merge.next()?.map(|row| row.row)),
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Vec<Value>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.most = self.most.checked_sub(1)?;
        self.pull().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(spool: Spool) -> Vec<Vec<Value>> {
        executor::block_on(spool.rows()).unwrap().collect::<Result<_>>().unwrap()
    }

    /// More than fit into memory, with many equal keys, so that the order of files counts.
    #[test]
    fn rows_in_files_have_the_order_of_rows_in_memory() {
        let directory: Arc<Path> = std::env::temp_dir().into();
        let descending = Direction { is_descending: true, nulls_first: true };
        for order in [vec![], vec![Direction::RISING], vec![descending, Direction::RISING]] {
            let mut spool = Spool::new(&directory, order.clone());
            let mut expected = Vec::new();
            let text = "x".repeat(1000);
            for number in 0..50_000i64 {
                let key = match number * 7919 % 1009 {
                    0 => Value::Null,
                    key => Value::Int(key),
                };
                let key = vec![key, Value::Int(number % 3)];
                let row = vec![Value::Int(number), Value::Text(text.clone())];
                expected.push((key.clone(), number));
                spool.push(OrderedRow { order: key, row }).unwrap();
            }
            assert!(spool.files.len() >= 3 && !spool.rows.is_empty());
            let compare = |one: &[Value], other: &[Value]| {
                let pairs = order.iter().zip(one.iter().zip(other));
                pairs.map(|(by, (one, other))| by.compare(one, other)).fold(Ordering::Equal, Ordering::then)
            };
            expected.sort_by(|(one, _), (other, _)| compare(one, other));
            let found = rows_of(spool);
            assert_eq!(found.len(), expected.len());
            for (row, (_, number)) in found.iter().zip(expected) {
                assert_eq!(row[0], Value::Int(number));
                assert_eq!(row[1], Value::Text(text.clone()));
            }
        }
    }

    /// The threads that write them are the same for large and small ones.
    #[test]
    fn many_files_become_few() {
        let mut spool = Spool::new(&std::env::temp_dir().into(), [Direction::RISING]);
        for number in (0..3 * MOST_FILES as i64).rev() {
            spool.bytes = MOST_BYTES;
            let row = vec![Value::Int(number)];
            spool.push(OrderedRow { order: row.clone(), row }).unwrap();
            assert!(spool.files.len() <= MOST_FILES + 4);
        }
        let expected: Vec<_> = (0..3 * MOST_FILES as i64).map(|number| vec![Value::Int(number)]).collect();
        assert_eq!(rows_of(spool), expected);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let missing = std::env::temp_dir().join("there-is-no-such-directory");
        let mut spool = Spool::new(&missing.into(), []);
        let text = Value::Text("x".repeat(MOST_BYTES));
        spool.push(OrderedRow { order: Vec::new(), row: vec![text] }).unwrap();
        let error = executor::block_on(spool.rows()).err().unwrap();
        assert_eq!(error.code, code::SYSTEM_ERROR);
        assert!(error.message.contains("temporary file"), "{}", error.message);
    }
}
