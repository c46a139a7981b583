\set VERBOSITY sqlstate
\pset null NULL
create table t (id int primary key, n int not null default 7, note text, check (n < 1000));
create index on t (n);
create table s (id int, n int, note text);
insert into t values (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three');
insert into s values (1, 1, 'a'), (2, null, 'b'), (4, 4, 'd'), (5, 5, null);

merge into t using s on t.id = s.id
    when matched and s.n is null then delete
    when matched then update set n = t.n + s.n, note = s.note
    when not matched and s.note is null then do nothing
    when not matched then insert (id, n, note) values (s.id, s.n, upper(s.note));
table t order by id;
-- A constant source, aliases, defaults, and values of all columns.
merge into t as x using (values (1, 'again'), (7, 'seven'), (8, 'eight')) as v (id, note) on x.id = v.id
    when matched then update set n = default, note = x.note || v.note
    when not matched and v.id = 8 then insert values (v.id, 88, v.note)
    when not matched then insert (id, note) values (v.id, v.note);
table t order by id;
-- A query, a join that is no equality, and DO NOTHING.
merge into t using (select max(id) m from t) q on t.id > q.m - 2
    when matched and note = 'seven' then do nothing
    when matched then update set note = 'last' when not matched then do nothing;
table t order by id;
merge into t using s on false when not matched then insert (id) values (s.id + 100);
select id, n, note from t where id > 100 order by id;
merge into t using s on t.id = s.id + 100 when matched then delete;
select count(*) from t;
-- Subqueries see the rows as they were.
merge into t using (values (1), (3), (50)) v (id) on t.id = v.id
    when matched then update set n = (select count(*) from t t2 where t2.n <= t.n)
    when not matched then insert values (v.id, (select count(*) from t), 'count');
table t order by id;
-- Keys that change, and prepared statements.
merge into t using s on t.id = s.id when matched then update set id = t.id + 1000;
table t order by id;
prepare m (int, text) as merge into t using (values ($1, $2)) v (id, note) on t.id = v.id
    when matched then update set note = v.note when not matched then insert (id, note) values (v.id, v.note);
execute m (60, 'new');
execute m (60, 'old');
select * from t where id = 60;
with w as (select 60 id union all select 61)
    merge into t using w on t.id = w.id when matched then delete when not matched then insert (id) values (w.id);
table t order by id;
-- Generated and identity columns, foreign keys, and RETURNING of what is in WITH.
create table p (id int primary key);
create table c (id int generated always as identity primary key, p int references p on delete cascade,
    twice int generated always as (p * 2) stored);
insert into p values (1), (2);
merge into c using p on c.p = p.id when not matched then insert (p) values (p.id);
table c order by id;
merge into c using p on c.p = p.id when matched then update set p = 9;
merge into c using p on c.p = p.id when not matched then insert (id, p) values (1, 1)
    when matched then update set twice = 3;
merge into p using (values (1)) v (i) on p.id = v.i when matched then delete;
table c order by id;
-- Errors.
merge into t using (values (3), (3)) v (id) on t.id = v.id when matched then update set n = 1;
merge into t using (values (3), (3)) v (id) on t.id = v.id when matched then delete;
merge into t using (values (77), (77)) v (id) on t.id = v.id when not matched then insert (id) values (v.id);
merge into t using s on t.id = s.id when matched then update set n = 5000 when not matched then insert (id, n) values (90 + s.id, 5000);
merge into t using s on t.id = s.id when not matched then insert (id, n) values (s.id);
merge into t using s on t.id = s.id when not matched then insert (id) values (s.id, 2);
merge into t using s on t.id = s.id when not matched then insert (id, nope) values (s.id, 2);
merge into t using s on t.id = s.id when matched then update set n = 1 when matched then delete;
merge into t using s on t.id = s.id when matched then insert values (1);
merge into t using s on t.id = s.id when not matched then delete;
merge into nope using s on true when matched then delete;
table t order by id;
begin read only;
merge into t using s on t.id = s.id when matched then delete;
rollback;
-- TABLE in other places.
select * from (table p) x union all table p order by 1;
create view v as table c;
table v order by id;
prepare q as table p;
execute q;
select 1 as table;
select id as table from p order by 1;
create view w as select id as table from p;
select * from w order by 1;
with w as (table t) select count(*) from w;
