"""The queries of Nexmark, as views over tables.

Nexmark was made for streams with event time. Here an epoch says what is true now, so nothing waits
for a watermark, and a late event corrects a window that was shown before.

    query   what it shows                         adapted, and why
    q0      bids as they are
    q1      prices in another currency
    q2      bids on some auctions
    q3      who sells in some states
    q4      average closing price by category
    q5      the auctions with most bids           over hop()
    q6      a seller's average of the last        a frame of rows over the winning bids; the
            prices                                original needs a retractable window
    q7      the highest bids of each 10 seconds   over tumble()
    q8      new people who open auctions          over tumble(), both sides
    q9      winning bids
    q10     bids by day and minute                the original writes them to files; a view keeps
                                                  what would be written
    q11     bids per session of a bidder          sessions by window functions, since the dialect
                                                  has no session windows
    q12     bids per bidder and 10 seconds        by the bids' own time: the clock of the machine,
                                                  as in the original, gives no repeatable answer
    q13     bids with something known beside      a table that can change; the original reads a
                                                  file, as it is when the bid comes
    q14     computed columns and a filter         counts letters with length() and replace(), where
                                                  the original has a function of its own
    q15     bids, bidders and auctions by day
    q16     the same by channel and day
    q17     prices by auction and day
    q18     the last bid of a bidder
    q19     the ten highest bids of an auction
    q20     bids with their auctions, of one
            category
    q21     the channel's number                  substring() with a pattern in the place of
                                                  regexp_extract()
    q22     parts of the address

None is left out.
"""

_HOPS = """
    select auction, count(*) as num, window_start as starttime
    from hop(bid, date_time, interval '2' second, interval '10' second)
    group by auction, window_start"""

_WINNERS = """
    select a.id, a.item_name, a.seller, a.category, a.expires, b.auction, b.bidder, b.price,
      b.date_time as bid_time,
      row_number() over (partition by a.id order by b.price desc, b.date_time) as place
    from auction a join bid b on a.id = b.auction
    where b.date_time between a.date_time and a.expires"""

_COUNTS = """count(*) as total_bids,
    count(*) filter (where price < 10000) as rank1_bids,
    count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids,
    count(*) filter (where price >= 1000000) as rank3_bids"""


def _distinct(column: str) -> str:
    return f"""count(distinct {column}) as total_{column}s,
    count(distinct {column}) filter (where price < 10000) as rank1_{column}s,
    count(distinct {column}) filter (where price >= 10000 and price < 1000000) as rank2_{column}s,
    count(distinct {column}) filter (where price >= 1000000) as rank3_{column}s"""


QUERIES = {
    "q0": "select auction, bidder, price, date_time, extra from bid",
    "q1": "select auction, bidder, 0.908 * price as price, date_time, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0 or auction % 100 = 7",
    "q3": """
  select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
  where a.category = 10 and (p.state = 'OR' or p.state = 'ID' or p.state = 'CA')""",
    "q4": """
  select category, avg(final) as average from (
    select max(b.price) as final, a.category from auction a, bid b
    where a.id = b.auction and b.date_time between a.date_time and a.expires
    group by a.id, a.category) closed
  group by category""",
    "q5": f"""
  select bids.auction, bids.num, bids.starttime from ({_HOPS}) bids
  join (select max(num) as most, starttime from ({_HOPS}) counted group by starttime) best
    on bids.starttime = best.starttime and bids.num >= best.most""",
    "q6": f"""
  select id, seller, avg(price) over (partition by seller order by bid_time
    rows between 10 preceding and current row) as average
  from ({_WINNERS}) won where place <= 1""",
    "q7": """
  select b.auction, b.price, b.bidder, b.date_time from bid b
  join (select max(price) as highest, window_end as ended
    from tumble(bid, date_time, interval '10' second) group by window_end) best
    on b.price = best.highest
  where b.date_time between best.ended - interval '10' second and best.ended""",
    "q8": """
  select p.id, p.name, p.starttime from (
    select id, name, window_start as starttime, window_end as endtime
    from tumble(person, date_time, interval '10' second)
    group by id, name, window_start, window_end) p
  join (
    select seller, window_start as starttime, window_end as endtime
    from tumble(auction, date_time, interval '10' second)
    group by seller, window_start, window_end) a
    on p.id = a.seller and p.starttime = a.starttime and p.endtime = a.endtime""",
    "q9": f"""
  select id, item_name, seller, category, expires, auction, bidder, price, bid_time
  from ({_WINNERS}) ranked where place <= 1""",
    "q10": """
  select auction, bidder, price, date_time, extra, to_char(date_time, 'YYYY-MM-DD') as day,
    to_char(date_time, 'HH24:MI') as minute
  from bid""",
    "q11": """
  select bidder, count(*) as bid_count, min(date_time) as starttime,
    max(date_time) + interval '10' second as endtime
  from (
    select bidder, date_time,
      sum(begins) over (partition by bidder order by date_time) as session
    from (
      select bidder, date_time, case when date_time - interval '10' second
        <= lag(date_time) over (partition by bidder order by date_time) then 0 else 1 end as begins
      from bid) gaps) sessions
  group by bidder, session""",
    "q12": """
  select bidder, count(*) as bid_count, window_start, window_end
  from tumble(bid, date_time, interval '10' second) group by bidder, window_start, window_end""",
    "q13": """
  select b.auction, b.bidder, b.price, b.date_time, s.value from bid b
  join side_input s on b.auction % 100 = s.key""",
    "q14": """
  select auction, bidder, 0.908 * price as price,
    case when extract(hour from date_time) between 8 and 18 then 'day'
      when extract(hour from date_time) <= 6 or extract(hour from date_time) >= 20 then 'night'
      else 'other' end as bid_time_type,
    date_time, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
  from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000""",
    "q15": f"""
  select to_char(date_time, 'YYYY-MM-DD') as day, {_COUNTS},
    {_distinct("bidder")},
    {_distinct("auction")}
  from bid group by to_char(date_time, 'YYYY-MM-DD')""",
    "q16": f"""
  select channel, to_char(date_time, 'YYYY-MM-DD') as day,
    max(to_char(date_time, 'HH24:MI')) as minute, {_COUNTS},
    {_distinct("bidder")},
    {_distinct("auction")}
  from bid group by channel, to_char(date_time, 'YYYY-MM-DD')""",
    "q17": f"""
  select auction, to_char(date_time, 'YYYY-MM-DD') as day, {_COUNTS},
    min(price) as min_price, max(price) as max_price, avg(price) as avg_price,
    sum(price) as sum_price
  from bid group by auction, to_char(date_time, 'YYYY-MM-DD')""",
    "q18": """
  select auction, bidder, price, channel, url, date_time, extra from (
    select *, row_number() over (partition by bidder, auction order by date_time desc) as place
    from bid) ranked
  where place <= 1""",
    "q19": """
  select auction, bidder, price, date_time, place from (
    select *, row_number() over (partition by auction order by price desc, date_time) as place
    from bid) ranked
  where place <= 10""",
    "q20": """
  select b.auction, b.bidder, b.price, b.channel, b.url, b.date_time as bid_time,
    a.item_name, a.initial_bid, a.reserve, a.date_time as opened, a.expires, a.seller, a.category
  from bid b join auction a on b.auction = a.id where a.category = 10""",
    "q21": """
  select auction, bidder, price, channel, case when lower(channel) = 'apple' then '0'
      when lower(channel) = 'google' then '1' when lower(channel) = 'facebook' then '2'
      when lower(channel) = 'baidu' then '3'
      else substring(url from 'channel_id=([^&]*)') end as channel_id
  from bid
  where substring(url from 'channel_id=([^&]*)') is not null
    or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
  select auction, bidder, price, channel, split_part(url, '/', 4) as dir1,
    split_part(url, '/', 5) as dir2, split_part(url, '/', 6) as dir3
  from bid""",
}
"""By name, as SELECT statements."""
