\set VERBOSITY sqlstate
-- COPY as text, CSV and binary
create table t (a int, b text, c numeric(10,2), d date);
copy t from stdin;
1	one	1.5	2024-02-29
2	\N	\N	\N
3	a\tb\nc\\d\re\101\x42\q	-1	infinity
4		0	2000-01-01
\.
copy t to stdout;
copy t (b, a) to stdout (delimiter '|', null 'nil', header);
copy t to stdout (format csv);
copy t to stdout (format csv, header, force_quote *);
copy t to stdout (format csv, header true, delimiter ';', quote '''', escape '\', null 'x', force_quote (a, b));
copy (select a, b || '"' as "b ""q""", '' as e, null as n from t order by a) to stdout with (format csv, header on);
copy (values ('\.'), ('a'), ('')) to stdout csv;
copy (values ('\.', 1)) to stdout csv;
copy (select array[1,null,3], '{"a": 1}'::jsonb, '\x00ff'::bytea, 'a b'::varchar) to stdout csv;
copy t to stdout with delimiter as ',' null as 'NULL';
copy t (a, b) to stdout using delimiters ':' with null as '?';
copy t to stdout csv header quote as '''' force quote b;
create table u (a int, b text default 'd', c text);
copy u (a, c) from stdin with (format csv, header);
x,y
1,"a ""quoted"" one, with
two lines"
2,
3,""
4," spaces "
5,mid"dle, qu"oted
\.
select *, c is null from u order by a;
truncate u;
copy u from stdin (format csv, header match, force_not_null (b), force_null (c));
a,b,c
1,,""
2,"","x"
3,b,
\.
select a, b is null, c is null, c from u order by a;
copy u from stdin (format csv, header match);
a,c,b
1,2,3
\.
copy u from stdin (format csv, header match);
a,b
1,2,3
\.
copy u from stdin (format csv, header match, null 'b');
a,b,c
\.
copy u from stdin (header match);
a	b	c
9	nine	ninth
\.
copy u from stdin (format csv, delimiter ';', quote '$', escape '\', null 'NUL');
10;$a\$b\\c$;NUL
11;$NUL$;x\y
\.
select * from u order by a;
copy u (a) from stdin csv;
\.
copy u from stdin csv;
1,2
\.
copy u from stdin csv;
1,2,3,4
\.
copy u from stdin csv;
1,"open
\.
copy u from stdin;
1	2
\.
copy u from stdin;
x	2	3
\.
copy u from stdin (format csv);
99999999999,2,3
\.
select count(*) from u;
-- options that are refused
copy t to stdout (format foo);
copy t to stdout (format csv, format csv);
copy t to stdout (foo bar);
copy t to stdout (header maybe);
copy t to stdout (header match);
copy t to stdout (format binary, header);
copy t to stdout (format binary, delimiter ',');
copy t to stdout (format binary, null 'x');
copy t to stdout (format binary, quote 'x');
copy t to stdout (delimiter 'ab');
copy t to stdout (delimiter 'a');
copy t to stdout (delimiter E'\n');
copy t to stdout (delimiter '');
copy t to stdout (null E'\n');
copy t to stdout (null 'a,b', delimiter ',');
copy t to stdout (format csv, null 'a"b');
copy t to stdout (quote '"');
copy t to stdout (format csv, quote 'ab');
copy t to stdout (format csv, quote ',');
copy t to stdout (escape '"');
copy t to stdout (format csv, escape 'ab');
copy t to stdout (force_quote *);
copy t to stdout (format csv, force_not_null (a));
copy t to stdout (format csv, force_null (a));
copy t from stdin (format csv, force_quote (a));
copy t from stdin (force_null (a));
copy t from stdin (force_not_null (a));
copy t to stdout (format csv, force_quote (nope));
copy t (a) to stdout (format csv, force_quote (b));
copy t to stdout (format csv, force_quote (a, a));
copy t to stdout (format csv, force_quote a);
copy t (a, a) to stdout;
copy t (nope) to stdout;
copy t to stdout csv csv;
copy t to stdout (delimiter);
copy t to stdout (header 2, format csv);
copy nope to stdout;
copy (select 1) from stdin;
copy t to stdout ();
-- binary
create table all_types (i2 smallint, i4 int, i8 bigint, f4 real, f8 float8, n numeric, t text, v varchar(5), b bytea, o bool, d date, ts timestamp, tz timestamptz, ti time, iv interval, u uuid, j json, jb jsonb, ia int[]);
insert into all_types values
  (1, 2, 3, 1.5, -2.25, 123.4500, 'text', 'vc', '\x00ff10', true, '2024-02-29', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56+02', '23:59:59', '1 mon 2 days 03:04:05', '00112233-4455-6677-8899-aabbccddeeff', '{"a": [1]}', '{"b": null}', '{1,null,3}'),
  (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
  (-1, -2, -3, 'nan', 'infinity', '-0.001', '', '', '', false, 'infinity', '-infinity', 'infinity', '00:00', '-1 sec', '00000000-0000-0000-0000-000000000000', 'null', '"x"', '{}');
\copy all_types to program 'md5sum' (format binary)
\copy (select i4, t from all_types) to program 'md5sum' binary
\set file `mktemp`
\setenv COPIED :file
copy all_types to stdout (format binary) \g :file
create table others (like all_types);
\copy others from program 'cat $COPIED' (format binary)
select * from others order by i4;
\copy others from program 'head -c 60 $COPIED' (format binary)
\copy others from program 'tail -c +2 $COPIED' (format binary)
\copy t from program 'cat $COPIED' (format binary)
\copy others from program 'cat $COPIED; echo more' (format binary)
\copy others from program 'printf "PGCOPY\\n\\377\\r\\n\\000\\000\\000\\000\\000\\000\\000\\000\\000\\377\\377"' binary
\copy others from program 'printf ""' binary
\copy t (a) from program 'printf "PGCOPY\\n\\377\\r\\n\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\001\\000\\000\\000\\005abcde\\377\\377"' binary
\copy t (a) from program 'printf "PGCOPY\\n\\377\\r\\n\\000\\000\\001\\000\\000\\000\\000\\000\\000\\377\\377"' binary
select count(*) from others;
create table many (a int, b text);
copy (select g, repeat('x', g % 200) || E'\n"' from generate_series(1, 5000) g) to stdout (format binary) \g :file
\copy many from program 'cat $COPIED' (format binary)
copy many to stdout (format csv) \g :file
\copy many from program 'cat $COPIED' (format csv)
copy many to stdout \g :file
\copy many from program 'cat $COPIED'
select count(*), count(distinct a || b), sum(length(b)) from many;
\! rm -f $COPIED
-- several statements in a text, and the older form of psql
copy t (a) to stdout\; select 1 as one\; copy t (b) to stdout csv;
\copy t(a,b) to stdout delimiter ':' csv header
\copy t(a,b) to stdout with csv quote as '''' force quote b
\copy (select a from t where a < 3) to stdout with null '-'
create table w (a int, b text);
\copy w from program 'printf "1,x\\r\\n2,y\\r\\n3,last"' csv
\copy w from program 'printf "4\\tx\\n5\\tlast"'
\copy w from program 'printf "6\\ta\\\\\\nb\\n"'
select * from w order by a;
