-- Dates and times: value and type must be PostgreSQL's exactly.
-- no table
age(timestamp '2001-04-10', timestamp '1957-06-13')
age(timestamp '2024-03-01', timestamp '2024-02-29')
age(timestamp '2024-02-29', timestamp '2024-03-31 12:30:00')
age(date '2024-05-15', date '2024-01-31')
age(timestamptz '2024-05-15 00:00:00+00', timestamptz '2023-01-31 10:00:00+00')
date_trunc('decade', timestamp '2024-02-29 13:05:07')
date_trunc('century', timestamp '2024-02-29 13:05:07')
date_trunc('millennium', timestamp '2024-02-29 13:05:07')
date_trunc('day', interval '3 days 25:10:11')
date_trunc('hour', interval '3 days 02:47:33')
date_trunc('year', interval '3 years 2 months 4 days')
date_trunc('month', interval '3 years 2 months 4 days')
date_trunc('day', timestamptz '2001-02-16 20:38:40+00', 'Australia/Sydney')
date_trunc('microseconds', timestamp '2024-02-29 13:05:07.123456')
date_bin('15 minutes', timestamp '2020-02-11 15:44:17', timestamp '2001-01-01')
date_bin('15 minutes', timestamptz '2020-02-11 15:44:17+00', timestamptz '2001-01-01 00:02:30+00')
date_bin('1 day', timestamp '1999-12-31 12:00:00', timestamp '2001-01-01 06:00:00')
extract(julian from date '2024-02-29')
extract(millennium from date '2024-02-29')
extract(century from timestamp '2001-01-01')
extract(timezone from timestamptz '2024-01-01 00:00:00+00')
extract(isodow from timestamp '2024-02-25 10:00:00')
extract(milliseconds from interval '1.5 seconds')
extract(century from interval '250 years')
extract(decade from interval '25 years')
extract(hour from time '10:11:12')
extract(second from time '10:11:12.5')
extract(epoch from time '10:11:12')
extract(microsecond from time '10:11:12.5')
date_part('dow', timestamp '2024-02-29 10:00:00')
date_part('day', interval '40 days 3 hours')
date_part('hour', time '10:11:12')
to_char(timestamp '2024-02-09 13:05:07.123456', 'HH12:MI:SS AM')
to_char(timestamp '2024-02-09 13:05:07.123456', 'HH:MI:SS pm')
to_char(timestamp '2024-02-09 13:05:07', 'Day, DD Month YYYY')
to_char(timestamp '2024-02-09 13:05:07', 'FMDay, FMDD FMMonth YYYY')
to_char(timestamp '2024-02-09 13:05:07', 'Dy Mon YY')
to_char(timestamp '2024-02-09 13:05:07', 'DY MON')
to_char(timestamp '2024-02-09 13:05:07', 'dy mon day month')
to_char(timestamp '2024-02-09 13:05:07', 'DDD D ID Q WW IW IYYY W J CC')
to_char(timestamp '2024-02-09 03:05:07', 'FMHH24:FMMI:FMSS')
to_char(timestamp '2024-02-09 13:05:07.123456', 'MS US SSSS')
to_char(timestamp '2024-02-09 13:05:07', '"year": YYYY')
to_char(timestamp '2024-02-09 13:05:07', 'YYYY-MM-DD"T"HH24:MI:SS')
to_char(timestamp '2024-02-09 13:05:07', 'DDth')
to_char(timestamp '2024-02-09 13:05:07', 'YYYYMMDDHH24MISS')
to_char(timestamptz '2024-02-09 13:05:07+00', 'YYYY-MM-DD HH24:MI:SS TZ')
to_char(date '2024-02-09', 'Mon DD, YYYY')
to_char(interval '15h 2m 12s', 'HH24:MI:SS')
to_char(1234.5, '9999.99')
to_char(1234567.891, '9,999,999.99')
to_char(-12.5, '999.99')
to_char(12, '0000')
to_char(12, '999')
to_char(12, 'FM999')
to_char(12.3, 'FM990.00')
to_char(0.5, 'FM990.0')
to_char(0.5, '0.9')
to_char(-7, 'S99')
to_char(485, '999')
to_char(12345, '999')
to_char(12, 'FM0000')
to_char(1234.567, 'FM9,999.00')
to_char(125.8::float8, '999.9')
to_date('2024-02-09', 'YYYY-MM-DD')
to_date('09/02/2024', 'DD/MM/YYYY')
to_date('20240209', 'YYYYMMDD')
to_date('09 Feb 2024', 'DD Mon YYYY')
to_timestamp('2024-02-09 13:05:07', 'YYYY-MM-DD HH24:MI:SS')
to_timestamp('09/02/2024 01:05 PM', 'DD/MM/YYYY HH12:MI AM')
to_timestamp('2024-02-09T13:05:07.123', 'YYYY-MM-DD"T"HH24:MI:SS.MS')
to_timestamp(1700000000)
make_date(2024, 2, 29)
make_time(10, 11, 12.5)
make_timestamp(2024, 2, 29, 10, 11, 12.5)
make_timestamptz(2024, 2, 29, 10, 11, 12.5)
make_interval(days => 10, hours => 3)
make_interval(years => 1, secs => 1.5)
make_interval(0, 1, 2, 3, 4, 5, 6.7)
justify_hours(interval '27 hours')
justify_days(interval '35 days')
isfinite(date '2024-01-01')
timestamp '2024-01-01 10:00' at time zone 'UTC'
timestamptz '2024-01-01 10:00:00+00' at time zone 'UTC'
timestamp '2024-07-01 10:00' at time zone '+02'
timestamptz '2024-07-01 10:00:00+00' at time zone interval '2 hours'
timezone('Europe/Paris', timestamptz '2024-07-01 10:00:00+00')
timestamp '2024-03-31 02:30:00' at time zone 'Europe/Paris'
timestamp '2024-10-27 02:30:00' at time zone 'Europe/Paris'
date '2024-01-31' + interval '1 mon'
date '2024-01-31' + interval '1 mon 1 day'
date '2024-01-31' - interval '1 year 2 mons'
date '2024-01-01' + time '10:11:12'
timestamp '2024-01-01 10:00:00' - date '2024-01-01'
time '10:00' + interval '3 hours'
time '23:00' + interval '3 hours'
time '10:00' - interval '11 hours'
time '10:00' - time '09:30'
time '10:00' < time '11:00'
time '10:11:12.500'
interval '1 day' / 2
interval '1 month' / 2
interval '1 month' * 1.5
interval '1 day' * 0.5
2 * interval '1 hour'
interval '1 hour' * 2.5
interval '3 hours' - interval '1 day'
interval '1 year' = interval '12 months'
interval '30 days' = interval '1 month'
interval '1 day' <> interval '23 hours'
interval '1 day' between interval '1 hour' and interval '2 days'
interval '1 year 2 mons -3 days'
interval '-1 year -2 mons +3 days -04:05:06'
interval 'P1Y2M3DT4H5M6S'
interval 'PT36H'
interval '1-2'
interval '1 2:03:04'
interval '1' day
interval '1-2' year to month
interval '1 12:59:10' day to second
interval '100' second
interval '1.5' hour
interval '2 weeks'
interval '1.5 months'
interval '0'
interval '1 day ago'
'1 day'::interval
interval '1 day'::text
'3 days'::interval + date '2024-01-01'
greatest(date '2024-01-01', date '2024-02-01')
least(timestamp '2024-01-01', timestamp '2024-02-01')
greatest(interval '1 day', interval '2 hours')
date '2024-01-01' between '2023-01-01' and '2024-12-31'
date '2024-01-01' = timestamp '2024-01-01 00:00:00'
date '2024-01-01' < timestamptz '2024-01-01 00:00:01+00'
(date '2024-01-01', date '2024-02-01') overlaps (date '2024-01-15', date '2024-03-01')
(date '2024-01-01', interval '10 days') overlaps (date '2024-01-15', date '2024-03-01')
'2024-01-01'::timestamp
'2024-01-01 10:11'::timestamp
'2024-01-01 10:11:12.123456'::timestamp
'2024-01-01T10:11:12Z'::timestamptz
'2024-01-01 10:11:12+05:30'::timestamptz
'2024-01-01 10:11:12 America/New_York'::timestamptz
'20240101'::date
'January 8, 1999'::date
'8 Jan 1999'::date
'epoch'::timestamp
timestamp '2024-01-01 24:00:00'
'10:11'::time
'10:11:12 PM'::time
time '101112'
timestamp '2024-01-01 10:11:12'::time::text
timestamptz '2024-01-01 10:11:12+00'::date
timestamptz '2024-01-01 10:11:12+00'::time
date '2024-01-01'::timestamptz
date '0001-01-01'
date '9999-12-31'
timestamp '1900-01-01 00:00:00' + interval '1 day'
extract(epoch from timestamp '1900-01-01')
extract(year from date '0044-03-15')
date '2024-03-10' - 7
7 + date '2024-03-10'
date '2024-01-01' + 5 * 2
timestamp '2024-01-01' + 5 * interval '1 day'
extract(day from timestamp '2024-03-01' - timestamp '2024-02-01')
timestamp '2024-03-01' - interval '1 day' * 3
age(timestamp '2024-03-01 00:00:00', timestamp '2023-01-31 00:00:01')
-- table x
age(q, timestamp '2000-02-29 12:00:00')
age(timestamp '2000-02-29 12:00:00', q)
age(z, timestamptz '1999-12-31 00:00:00+00')
date_trunc('decade', q)
date_trunc('week', z)
date_trunc('quarter', p)
date_trunc('month', q - timestamp '2000-01-01')
date_bin('1 hour', q, timestamp '2000-01-01 00:30:00')
date_bin('7 days', z, timestamptz '2000-01-03 00:00:00+00')
extract(isoyear from p)
extract(isodow from q)
extract(julian from p)
extract(century from p)
extract(milliseconds from q)
extract(hour from q::time)
extract(minute from q - timestamp '2000-01-01')
date_part('month', z)
to_char(q, 'Day DD Month YYYY HH12:MI:SS.US AM')
to_char(q, 'FMDay FMDD FMMonth Q IW IYYY DDD')
to_char(p, 'Dy, DD Mon YYYY')
to_char(z, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
to_date(p::text, 'YYYY-MM-DD')
to_timestamp(q::text, 'YYYY-MM-DD HH24:MI:SS')
make_date(extract(year from p)::int, 1, 1)
make_interval(days => id)
q + make_interval(hours => id)
q + id * interval '1 day'
p + id
q::time + interval '1 hour'
q - q
z - q::timestamptz
(q - timestamp '2000-01-01') / 2
(q - timestamp '2000-01-01') * 2
(q - timestamp '2000-01-01') > interval '1 year'
greatest(q - timestamp '2000-01-01', interval '1 day')
(q - timestamp '2000-01-01')::text
justify_hours(q - timestamp '2000-01-01')
z at time zone 'Europe/Paris'
q at time zone 'America/New_York'
z::time
q::time::text
p::text::date
q::text::timestamp
z::text::timestamptz
to_char(id, '000')
