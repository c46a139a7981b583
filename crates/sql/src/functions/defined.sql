-- Texts

quote_nullable(a anyelement) text stable null := coalesce(quote_literal(a), 'NULL')

quote_nullable(a text) text null := coalesce(quote_literal(a), 'NULL')

!~(a text, b text) bool := not a ~ b

!~*(a text, b text) bool := not a ~* b

!~~(a text, b text) bool := not a ~~ b

!~~*(a text, b text) bool := not a ~~* b

-- Dates and times

+(a int4, b date) date := b + a

-(a date, b int4) date := a + -b

+(a time/timetz, b date) timestamp/timestamptz := b + a

+(a interval, b date/timestamp/timestamptz/time/timetz) timestamp/timestamp/timestamptz/time/timetz :=
  b + a

-(a date/timestamp/timestamptz/time/timetz/interval, b interval)
  timestamp/timestamp/timestamptz/time/timetz/interval := a + -b

*(a float8, b interval) interval := b * a

age(a timestamp/timestamptz) interval stable := age(current_date, a)

isfinite(a date/timestamp/timestamptz) bool := a not in ('infinity', '-infinity')

isfinite(a interval) bool := case when a is not null then true end

make_timestamp(year int4, month int4, mday int4, hour int4, min int4, sec float8) timestamp :=
  make_date(year, month, mday) + make_time(hour, min, sec)

make_timestamptz(year int4, month int4, mday int4, hour int4, min int4, sec float8) timestamptz stable :=
  make_timestamp(year, month, mday, hour, min, sec)::timestamptz

make_timestamptz(year int4, month int4, mday int4, hour int4, min int4, sec float8, timezone text)
  timestamptz stable := timezone(timezone, make_timestamp(year, month, mday, hour, min, sec))

-- JSON

<@(a jsonb, b jsonb) bool := b @> a

-- Arrays

<@(a anycompatiblearray, b anycompatiblearray) bool := b @> a

-- Catalogs

_pg_char_max_length(a oid, b int4) int4 := case when a in (1042, 1043) and b >= 4 then b - 4 end

_pg_char_octet_length(a oid, b int4) int4 :=
  case when a in (1042, 1043) and b >= 4 then (b - 4) * 4
  when a in (25, 1042, 1043) then 1073741824 end

_pg_datetime_precision(a oid, b int4) int4 :=
  case when a = 1082 then 0 when a in (1083, 1114, 1184, 1186, 1266) then 6 end

_pg_numeric_precision(a oid, b int4) int4 :=
  case a when 21 then 16 when 23 then 32 when 20 then 64 when 700 then 24 when 701 then 53
  when 1700 then case when b >= 4 then (b - 4) >> 16 end end

_pg_numeric_precision_radix(a oid, b int4) int4 :=
  case when a = 1700 then 10 when a in (20, 21, 23, 700, 701) then 2 end

_pg_numeric_scale(a oid, b int4) int4 :=
  case when a in (20, 21, 23) then 0 when a = 1700 and b >= 4 then (b - 4) & 2047 end

col_description(a oid, b int4) text stable :=
  (select description from pg_catalog.pg_description
   where objoid = a and classoid = 1259 and objsubid = b and objsubid <> 0)

obj_description(a oid) text stable :=
  (select description from pg_catalog.pg_description where objoid = a and objsubid = 0)

obj_description(a oid, b name) text stable :=
  (select description from pg_catalog.pg_description d join pg_catalog.pg_class c on c.oid = d.classoid
   where objoid = a and objsubid = 0 and relname = b and relnamespace = 11)

pg_char_to_encoding(a name) int4 stable :=
  case translate(lower(a), '-_ ', '') when 'sqlascii' then 0 when 'utf8' then 6 when 'unicode' then 6
  when 'latin1' then 8 when 'iso88591' then 8 else case when a is not null then -1 end end

pg_encoding_to_char(a int4) name stable :=
  case a when 0 then 'SQL_ASCII' when 6 then 'UTF8' when 8 then 'LATIN1' else case when a is not null then '' end end

pg_index_column_has_property(a regclass, b int4, c text) bool stable :=
  case when (select indnatts from pg_catalog.pg_index where indexrelid = a and b between 1 and indnatts)
    is null then null
  when c in ('asc', 'nulls_last', 'orderable', 'search_nulls', 'search_array', 'returnable') then true
  when c in ('desc', 'nulls_first', 'distance_orderable') then false end

pg_index_has_property(a regclass, b text) bool stable :=
  case when (select indnatts from pg_catalog.pg_index where indexrelid = a) is null then null
  when b = 'index_scan' then true when b in ('clusterable', 'bitmap_scan', 'backward_scan') then false end

pg_indexam_has_property(a oid, b text) bool stable :=
  case when a is null or a <> 403 then null when b in ('can_order', 'can_unique', 'can_multi_col') then true
  when b in ('can_exclude', 'can_include') then false end

pg_relation_filenode(a regclass) oid stable :=
  (select nullif(relfilenode, 0) from pg_catalog.pg_class where oid = a)

