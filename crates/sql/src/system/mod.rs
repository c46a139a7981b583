//! The schemas `pg_catalog` and `information_schema`: tables and views of the definitions of a
//! database, in the form that PostgreSQL's clients expect.
//!
//! | module | content |
//! |---|---|
//! | `snapshot` | the definitions, and the numbers of objects |
//! | `relations` | names and columns of the tables and views, and their rows if these never change |
//! | `classes`, `constraints`, `comments`, `types`, `procedures`, `cluster` | rows from the definitions |
//! | `names` | types whose values are shown as names |
//! | `describe` | definitions as text |
//! | `acl`, `privileges` | rights as text, and as rows |
//! | `functions` | the functions that show definitions |

mod acl;
mod classes;
mod cluster;
mod comments;
mod constraints;
pub(crate) mod describe;
pub(crate) mod functions;
mod names;
mod privileges;
mod procedures;
mod relations;
mod rows;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use self::{
    classes::SEQUENCE_COLUMNS,
    describe::{KEYWORDS, keywords},
    names::{cast, number_of, sequence},
    relations::{SystemTable, find_table, find_view, type_named},
    snapshot::{Definitions, Snapshot},
    types::{category, is_type},
};
