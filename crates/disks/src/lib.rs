//! Disk groups: blocks striped over files that every node opens directly; the page header.
