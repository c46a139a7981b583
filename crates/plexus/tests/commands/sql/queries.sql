\set VERBOSITY sqlstate
select 1;
