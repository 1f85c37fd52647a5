"""A small HTTP service with a slow start: it imports numpy and pandas and builds tables before it can answer.

GET /report?key=N   sums of one group of the table and a hash over the whole answer, computed for each request
GET /healthz        ok
"""

import hashlib
import http.server
import json
import sys
import urllib.parse

import numpy
import pandas

ROWS = 900_000


def build(rows, seed):
    """Tables that depend on the seed only, with what a service prepares once so that its answers are fast."""
    random = numpy.random.RandomState(seed)
    sales = pandas.DataFrame(
        {
            "customer": random.randint(0, 30_000, rows),
            "product": random.randint(0, 500, rows).astype("int32"),
            "amount": numpy.round(random.gamma(2.0, 30.0, rows), 2),
            "day": random.randint(0, 365, rows).astype("int16"),
        }
    )
    sales = sales.sort_values(["customer", "day"], kind="stable").reset_index(drop=True)
    sales["smooth"] = sales.groupby("customer")["amount"].rolling(7, min_periods=1).mean().values
    sales["rank"] = sales.groupby("day")["amount"].rank(pct=True)
    sales["invoice"] = "c" + sales["customer"].astype(str) + "-" + sales["day"].astype(str)
    sales = sales.sort_values(["product", "day"], kind="stable").reset_index(drop=True)
    by_customer = sales.groupby("customer")["amount"].agg(["sum", "mean", "std", "count"])
    by_month = sales.pivot_table(
        index="product", columns=sales["day"] // 30, values="amount", aggfunc="sum", fill_value=0
    )
    return sales, by_customer, by_month


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/report":
            key = int(urllib.parse.parse_qs(url.query).get("key", ["0"])[0])
            self.answer(200, report(key))
        elif url.path == "/healthz":
            self.answer(200, {"ok": True})
        else:
            self.answer(404, {"error": "no such path"})

    def answer(self, status, value):
        body = json.dumps(value, sort_keys=True).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def report(key):
    """Touches part of the big table and all of the small ones."""
    part = SALES[SALES["product"] == key % 500]
    sums = part.groupby("day")[["amount", "smooth", "rank"]].sum()
    best = BY_CUSTOMER["sum"].nlargest(10)
    digest = hashlib.sha256("".join(part["invoice"]).encode())
    for values in (sums.values, best.values, BY_MONTH.values):
        digest.update(numpy.ascontiguousarray(values).tobytes())
    return {
        "key": key,
        "rows": len(part),
        "total": round(float(part["amount"].sum()), 2),
        "best_customers": [int(c) for c in best.index],
        "sha256": digest.hexdigest(),
    }


SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 1
SALES, BY_CUSTOMER, BY_MONTH = build(ROWS, SEED)
report(0)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
