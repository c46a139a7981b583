\set VERBOSITY sqlstate
-- INCLUDE.
create table t (a int primary key, b int, c text, constraint cu unique (b) include (c, a));
create index on t (c desc, lower(c)) include (b);
create index named on t (a) include (c, b);
create unique index on t (b) include (c);
create table q (a int, b int, j json, constraint qq primary key (a) include (b), unique (b) include (j));
create index on t (a) include (nope);
create table bad (a int, unique (a) include (nope));
create table r (x int references t (b), y int references t (b, c));
create table r (x int references t (b), z int unique references r (z));
insert into t values (1, 1, 'x'), (2, 2, 'x');
insert into t values (3, 1, 'y');
insert into t values (3, 3, 'x') on conflict (b) do nothing;
insert into t values (4, 3, 'z') on conflict (b) do update set c = excluded.c returning *;
select * from t where b = 2;
\d t
\d q
\d named
select indexrelid::regclass, indnatts, indnkeyatts, indisunique, indisprimary, indimmediate, indkey, indclass, indoption, indcollation, pg_get_indexdef(indexrelid), pg_get_indexdef(indexrelid, 2, true) from pg_index where indrelid in ('t'::regclass, 'q'::regclass) order by 1::text;
select attrelid::regclass, attname, attnum from pg_attribute where attrelid in ('cu'::regclass, 'qq'::regclass) order by 1::text, 3;
alter table t drop column c;
alter table t drop column c cascade;
alter table q drop column j;
\d t
\d q
alter table q drop column b;
\d q
\d r
drop table r, t, q;
-- Deferrable keys.
create table t (a int primary key, b int unique deferrable, c int constraint cu unique deferrable initially deferred, d int unique initially deferred, e int unique not deferrable initially immediate);
create table p (a int, b text, primary key (a) deferrable initially deferred);
create table bad (a int unique initially deferred not deferrable);
\d t
\d p
select conname, contype, condeferrable, condeferred, conkey, pg_get_constraintdef(oid), conindid::regclass from pg_constraint where conrelid in ('t'::regclass, 'p'::regclass) order by 1;
select indexrelid::regclass, indisunique, indisprimary, indimmediate, pg_get_indexdef(indexrelid) from pg_index where indrelid in ('t'::regclass, 'p'::regclass) order by 1::text;
select constraint_name, constraint_type, is_deferrable, initially_deferred from information_schema.table_constraints where table_schema = 'public' and constraint_type <> 'CHECK' order by 1;
-- Neither foreign keys, nor ON CONFLICT, nor GROUP BY take them.
create table r (x int references t (b));
create table r (x int references p);
create table r (x int references p (a));
insert into t values (1, 1, 1, 1, 1) on conflict do nothing;
insert into t values (1, 1, 1, 1, 1) on conflict (b) do nothing;
insert into t values (1, 1, 1, 1, 1) on conflict on constraint cu do update set a = 2;
insert into p values (1, 'x') on conflict (a) do nothing;
insert into t values (1, 1, 1, 1, 1) on conflict (a) do nothing;
select a, b from p group by a;
alter table p add primary key (b);
alter table p alter a drop not null;
insert into p values (null, 'x');
-- At the end of the statement.
insert into t values (2, 2, 2, 2, 2), (3, 3, 3, 3, 3), (4, null, null, null, 4), (5, null, null, null, 5);
update t set b = b + 1;
update t set b = 5 where a in (1, 2);
update t set e = e + 1;
insert into t values (6, 3, 6, 6, 6);
select a, b from t where b = 3;
select a, b from t order by b, a;
-- At the end of the transaction.
update t set c = c + 1;
update t set c = 3;
begin;
update t set c = 3 where a = 1;
select a, c from t where c = 3 order by a;
select a, c from t where c < 5 order by c desc, a desc;
update t set c = 2 where c = 3 and a <> 1;
select a, c from t order by c, a;
commit;
select a, c from t order by c, a;
begin;
insert into t values (6, 6, 3, 6, 6);
commit;
begin;
insert into t values (6, 6, 3, 6, 6);
delete from t where a = 6;
insert into t values (6, 6, 3, 6, 6);
savepoint s;
delete from t where c = 3 and a <> 6;
rollback to s;
set constraints cu immediate;
rollback;
begin;
set constraints all immediate;
insert into t values (6, 6, 3, 6, 6);
rollback;
begin;
set constraints t_b_key, t_d_key deferred;
insert into t values (6, 3, 6, 3, 6);
update t set b = 66 where a = 6;
set constraints t_b_key immediate;
update t set d = 3 where a = 2;
set constraints all immediate;
rollback;
begin;
set constraints t_e_key deferred;
rollback;
begin;
set constraints t_pkey deferred;
rollback;
begin;
insert into t values (6, 6, 3, 6, 6);
savepoint s;
alter table t add f int;
rollback to s;
create index on t (c);
rollback to s;
truncate t;
rollback to s;
update t set c = 7 where a = 6;
alter table t add f int;
rollback;
begin;
insert into p values (1, 'a'), (1, 'b'), (2, 'c');
update p set a = 3 where b = 'b';
commit;
select * from p where a = 3;
update p set a = a + 1;
update p set a = 4;
insert into p values (2, 'd');
select * from p order by a, b;
copy p from stdin;
5	e
5	f
\.
copy p from stdin;
5	e
6	f
\.
delete from p where a = 5;
-- They are made of rows, and stay.
create table m (a int, b int, c int);
insert into m values (1, 1, 1), (2, 1, null), (3, null, null);
alter table m add constraint mb unique (b) deferrable;
alter table m add constraint mc unique (c) deferrable, add constraint ma primary key (a) deferrable initially deferred;
alter table m add primary key (b);
insert into m values (1, 5, 5);
insert into m values (4, 5, 1);
insert into m values (4, 5, 5), (5, 6, 6);
alter table m alter c type numeric;
alter table m add d int default 7;
alter table m alter c type int using 1;
update m set c = 5 where a = 5;
update m set a = 5 where a = 4;
\d m
comment on constraint ma on m is 'deferred';
select obj_description(oid, 'pg_constraint') from pg_constraint where conname = 'ma';
alter table m rename constraint ma to mm;
alter table m drop constraint mm;
alter table m drop constraint mc;
insert into m values (5, 6, 6);
alter table m add primary key (a);
\d m
drop table m, p, t;
-- NULL as a value like others.
create table n (a int unique nulls not distinct, b int, c int, unique nulls not distinct (b, c) deferrable, unique nulls distinct (c));
create unique index ni on n (b, c, a) include (a) nulls not distinct;
insert into n values (null, 1, 1), (1, 1, null), (2, null, null);
insert into n values (null, 5, 5);
insert into n values (4, 1, null);
insert into n values (4, 5, null), (5, 5, null);
insert into n values (null, 5, 5) on conflict (a) do update set b = 7 returning *;
update n set b = null, c = null where a is null;
select * from n where a is null;
\d n
select indexrelid::regclass, indnullsnotdistinct from pg_index where indrelid = 'n'::regclass order by 1::text;
select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = 'n'::regclass order by 1;
drop table n;
-- Classes of patterns, and identities that go.
create table o (a varchar(5), b text, c char(3), d int generated always as identity, e int);
create index oi on o (a varchar_pattern_ops, b text_pattern_ops desc, c bpchar_pattern_ops, lower(b) collate "C" pg_catalog.text_pattern_ops);
\d o
select pg_get_indexdef('oi'::regclass), indclass from pg_index where indexrelid = 'oi'::regclass;
alter table o alter column d drop identity;
alter table o alter column e drop identity if exists;
alter table o alter e drop identity;
insert into o (d) values (7);
insert into o (a) values ('x');
\d o
select to_regclass('o_d_seq');
drop table o;
-- Collations.
create table c (a text collate "C", b varchar(10) collate "POSIX" default 'x' not null, c text collate "default", d text collate pg_catalog."C" primary key, e text[] collate "ucs_basic", f text);
create table bad (a int collate "C");
create index i on c (a collate "POSIX" desc, b, f collate "C", (lower(f) collate "C"));
\d c
select attname, attcollation from pg_attribute where attrelid = 'c'::regclass and attnum > 0 order by attnum;
select column_name, collation_schema, collation_name from information_schema.columns where table_name = 'c' order by 1;
select indcollation, pg_get_indexdef(indexrelid), pg_get_indexdef(indexrelid, 1, true) from pg_index where indexrelid = 'i'::regclass;
insert into c (a, d, f) values ('b', '1', 'é'), ('B', '2', 'e'), ('a', '3', 'z'), ('_', '4', 'E');
select a from c order by a collate "C";
select a from c where a collate "POSIX" > 'A' order by a collate "C" desc;
select f, f < 'f' collate "C" from c order by f collate "C";
select max(f collate "C"), 'a' collate "C" < 'B', 'x'::text collate "C" || 'y' from c;
select 1 collate "C";
create table l (like c);
\d l
alter table c alter a type text;
\d c
drop table c, l;
-- ON COMMIT.
create temporary table gone (a int) on commit drop;
select * from gone;
create table bad (a int) on commit drop;
create temporary table d (a int primary key, b text) on commit delete rows;
create temporary table if not exists d (a int) on commit drop;
insert into d values (1, 'x');
select * from d;
begin;
insert into d values (1, 'x'), (2, 'y');
create temporary table gone (a int) on commit drop;
insert into gone select a from d;
create temporary view v as select a from gone;
select * from v;
savepoint s;
create temporary table undone (a int) on commit delete rows;
rollback to s;
alter table d rename to e;
commit;
select * from e;
select * from gone;
select * from v;
begin;
insert into e values (1, 'x');
rollback;
begin;
create temporary table gone on commit drop as select 1 as a;
select * from gone;
rollback;
begin;
insert into e values (1, 'x');
insert into e values (1, 'y');
commit;
insert into e values (1, 'x') returning *;
create temporary table f (a int references e) on commit delete rows;
begin;
insert into e values (1, 'x');
insert into f values (1);
commit;
select count(*) from e;
select count(*) from f;
create temporary table s on commit delete rows as select 1 as a;
select * from s;
create temporary table k (a int) on commit preserve rows;
insert into k values (1);
select * from k;
-- A rollback to a savepoint takes SET CONSTRAINTS back.
create table sc (a int unique deferrable, b int unique deferrable initially deferred);
insert into sc values (1, 1);
begin;
savepoint s;
set constraints all deferred;
insert into sc values (1, 2);
rollback to s;
insert into sc values (1, 2);
rollback to s;
set constraints sc_b_key immediate;
savepoint r;
set constraints sc_b_key deferred;
release r;
insert into sc values (2, 1);
rollback to s;
insert into sc values (2, 1);
commit;

-- A deferrable key of a table whose rows need many pages.
create table many (a int, b text);
insert into many select g, 'x' from generate_series(1, 5000) g;
alter table many add constraint many_a unique (a) deferrable;
delete from many where a >= 1 and a <= 5000;
select count(*) from many;
insert into many select g, 'y' from generate_series(1, 5000) g;
alter table many alter column b type varchar(10);
update many set b = 'z' where a > 10 and a < 4990;
select b, count(*), min(a), max(a) from many group by b order by b;
drop table many;

-- A rollback to a savepoint makes checks necessary again.
create table again (a int unique deferrable initially deferred);
begin;
insert into again values (1), (1);
savepoint s;
set constraints all immediate;
rollback to s;
commit;
select count(*) from again;
begin;
insert into again values (2), (2);
savepoint s;
delete from again;
set constraints all immediate;
rollback to s;
commit;
select count(*) from again;
begin;
insert into again values (3);
savepoint s;
insert into again values (3);
rollback to s;
set constraints all immediate;
insert into again values (4);
commit;
select a from again order by a;
drop table again;
