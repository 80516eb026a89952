"""The shop's pages as HTML, for the observation mode `html`.

Invariant: byte for byte the markup of WebShop's templates (princeton-nlp/WebShop, MIT), blank lines included, as
its server rendered them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from rollenv.envs.webshop.pages import BACK, BUY, NEXT, PREV, to_json
from rollenv.envs.webshop.product import Product

_BOOTSTRAP = "https://maxcdn.bootstrapcdn.com/bootstrap/3.4.1/css/bootstrap.min.css"
_AWESOME = "https://cdnjs.cloudflare.com/ajax/libs/font-awesome/4.7.0/css/font-awesome.min.css"
_AWESOME_OLD = "https://cdnjs.cloudflare.com/ajax/libs/font-awesome/4.0.3/css/font-awesome.css\t"
_SCRIPTS = (
    "https://ajax.googleapis.com/ajax/libs/jquery/3.5.1/jquery.min.js",
    "https://stackpath.bootstrapcdn.com/bootstrap/4.3.1/js/bootstrap.bundle.min.js",
)
_UNQUOTED = "$!'()*,;"
_SIGNS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


def escape(text: object) -> str:
    """Text inside markup or an attribute."""
    return str(text).translate(_SIGNS)


@functools.lru_cache(maxsize=16384)
def _quote(text: str) -> str:
    """Text inside a query string, as Werkzeug 2.2 writes it."""
    return quote_plus(text.encode("utf-8", "replace"), safe=_UNQUOTED)


def address(**parts: Any) -> str:
    """A link's address, escaped for an attribute: every part in the query string, a list once per member."""
    pairs = [
        f"{key}={_quote(str(one))}"
        for key, value in parts.items()
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return escape("/?" + "&".join(pairs))


def _more(**parts: Any) -> str:
    """The continuation of an address."""
    return "&amp;" + address(**parts)[2:]


# -- parts that pages share --------------------------------------------------------------------------------


def _links(*sheets: str) -> str:
    lines = [f'    <link rel="stylesheet" href="{sheet}">\n' for sheet in ("/static/style.css", *sheets)]
    return "".join(lines)


def _document(head: str, body: str, tail: str = "") -> str:
    return f"<!DOCTYPE html>\n<html>\n  <head>\n{head}  </head>\n  <body>\n{body}  </body>\n{tail}</html>"


_PAGE_HEAD = (
    _links(_BOOTSTRAP, _AWESOME_OLD)
    + "".join(f'    <script src="{script}"></script>\n' for script in _SCRIPTS)
    + '    <link rel="icon" href="data:,">\n'
)
_OUTER_HEAD = '    <link rel="icon" href="data:,">\n'
_REFERENCE = "    <!-- Code reference: https://bootsnipp.com/snippets/m13mN -->\n"


def _instruction(text: str) -> str:
    return f"""    <div class="container py-5">
      <div class="row top-buffer">
        <div class="col-sm-6">
          <div id="instruction-text" class="text-center">
            <h4>Instruction:<br>{escape(text)}</h4>
          </div>
        </div>
      </div>
"""


def _row_button(link: str, style: str, name: str) -> str:
    return f"""      <div class="row top-buffer">
        <form method="post" action="{link}">
          <button type="submit" class="btn {style}">{escape(name)}</button>
        </form>
      </div>
"""


def _top(session: str, instruction: str, previous: str | None) -> str:
    """The instruction, the way back to the search, and the one to the page before."""
    top = _instruction(instruction) + _row_button(address(session_id=session), "btn-success", BACK)
    return top + (_row_button(previous, "btn-primary", PREV) if previous is not None else "")


# -- the pages ---------------------------------------------------------------------------------------------


def search_page(session: str, instruction: str) -> str:
    """The page with the search bar."""
    body = f"""{_REFERENCE}    <div class="container" style="margin-top: 8%;">
      <div class="col-md-6 col-md-offset-3">     
        <div class="row">
          <div id="logo" class="text-center">
            <h2>WebShop</h2>
          </div>
          <div id="instruction-text" class="text-center">
            <h4>Instruction: <br>{escape(instruction)}</h4>
          </div>
          <form role="form" id="form-buscar" method="post" action="{address(session_id=session)}">
            <div class="form-group">
              <div class="input-group">
                <input id="search_input" class="form-control" type="text" name="search_query" placeholder="Search..." required/>
                <span class="input-group-btn">
                  <button class="btn btn-success" type="submit"><i class="glyphicon glyphicon-search" aria-hidden="true"></i>Search</button>
                </span>
              </div>
            </div>
          </form>
        </div>            
      </div>
    </div>
"""  # noqa: E501, W291
    return _document(_links(_AWESOME, _BOOTSTRAP) + _OUTER_HEAD, body)


def results_page(
    session: str, instruction: str, keywords: Sequence[str], page: int, total: int, products: Iterable[Product]
) -> str:
    """A page of hits."""

    def turn(to: int, name: str) -> str:
        link = address(session_id=session, keywords=keywords, page=to)
        return f"""            <div class="col-sm-2">
              <form method="post" action="{link}">
                <button type="submit" class="btn btn-primary">{escape(name)}</button>
              </form>
            </div>
"""

    first = turn(page - 1, PREV) if page > 1 else '            <div class="col-sm-2">\n            </div>\n'
    hits = "        ".join(_hit(session, keywords, page, product) for product in products)
    body = f"""{_top(session, instruction, None)}      <div class="row top-buffer">
        <div class="col-sm-8">
          <div class="display-4">
            <h3>Page {page} (Total results: {total})</h3>
          </div>
          
{first}{turn(page + 1, NEXT)}          
        </div>
      </div>

      <div class="row top-buffer">
        {hits and hits + "        "}
      </div>
    </div>
"""  # noqa: W291, W293
    return _document(_PAGE_HEAD, body)


def _hit(session: str, keywords: Sequence[str], page: int, product: Product) -> str:
    link = address(session_id=session, asin=product.asin, keywords=keywords, page=page, options={})
    hidden = "".join(
        f"""                    <div class="d-flex align-items-center justify-content-between mt-1">
                      <h5 class="font-weight-bold my-2 product-{name}">{escape(value)}</h5>
                    </div>
"""
        for name, value in (
            ("category", product.category),
            ("query", product.query),
            ("product_category", product.product_category),
        )
    )
    return f"""
        <div class="col-lg-12 mx-auto list-group-item">
          <div class="col-lg-4">
            <img src="{escape(product.image)}" class="result-img">
          </div>
          <div class="col-lg-8">
            <ul class="list-group shadow">
                <div class="media align-items-lg-center flex-column flex-lg-row p-3">
                  <div class="media-body order-2 order-lg-1 searched-product">
                    
                    <h4 class="mt-0 font-weight-bold mb-2 product-asin"><a class="product-link" href="{link}">{escape(product.asin)}</a></h5>
                    <h4 class="mt-0 font-weight-bold mb-2 product-title">{escape(product.name)}</h5>
                    <div class="d-flex align-items-center justify-content-between mt-1">
                      <h5 class="font-weight-bold my-2 product-price">{escape(product.price_tag)}</h6>
                    </div>
<!--
{hidden}-->
                  </div>
                </div>
            </ul>
          </div>
        </div>
"""  # noqa: E501, W293


def item_page(
    session: str,
    instruction: str,
    keywords: Sequence[str],
    page: int,
    product: Product,
    options: Mapping[str, str],
    show_attributes: bool,
) -> str:
    """A product's page."""
    previous = address(session_id=session, keywords=keywords, page=page)
    names = (("description", "Description"), ("bulletpoints", "Features"), ("reviews", "Reviews"))
    link = address(session_id=session, asin=product.asin, keywords=keywords, page=page)
    sub_pages = "".join(_sub_button(link, options, place, name) for place, name in names)
    extra = f"\n{_sub_button(link, options, 'attributes', 'Attributes')}            " if show_attributes else ""
    groups = "".join(_option_group(link, product, name, options) for name in product.options)
    body = f"""{_top(session, instruction, previous)}      <div class="row top-buffer">
        <div class="col-md-4 mb-4 mb-md-0">
          <div class="row top-buffer">
            <img id="product-image" src="{escape(product.image)}" class="item-page-img">
          </div>
          {groups}
        </div>
        <div class="col-md-6">
          <h2>{escape(product.name)}</h2>
          <h4>Price: {escape(product.price_tag)}</h4>
          <h4>Rating: N.A.</h4>
          <div class="row top-buffer">
{sub_pages}            {extra}
          </div>
        </div>
        <div class="col-sm-2">
          <div class="row top-buffer">
            <form method="post" action="{address(session_id=session, asin=product.asin, options=dict(options))}">
              <button type="submit" class="btn btn-lg purchase">{BUY}</button>
            </form>
          </div>
        </div>
      </div>
    </div>
"""
    return _document(_PAGE_HEAD, body, _item_script(product, options))


def _sub_button(link: str, options: Mapping[str, str], place: str, name: str) -> str:
    return f"""            <div class="col-sm-3" name="{place}">
              <form method="post" action="{link}{_more(sub_page=name, options=dict(options))}">
                <button class="btn btn-primary" type="submit">{name}</button>
              </form>
            </div>
"""


def _option_group(link: str, product: Product, name: str, options: Mapping[str, str]) -> str:
    label = escape(name)
    values = "".join(
        f"""
                  
                  
                  
                  <input type="radio" id="radio_{label}{i}" name="{label}" value="{escape(value)}" data-url="{link}{_more(options={**options, name: value})}">
                  <label for="radio_{label}{i}">{escape(value)}</label>
                """  # noqa: E501, W293
        for i, value in enumerate(product.options[name])
    )
    return f"""
            <div class="row top-buffer">
              <h4>{label}</h4>
              <div class="radio-toolbar">
                {values}
              </div>
            </div>
          """


def _item_script(product: Product, options: Mapping[str, str]) -> str:
    return f"""  <script>
    $(document).ready(function() {{
      $('input:radio').each(function() {{
        //console.log($(this).val());
        let options = JSON.parse(`{to_json(dict(options))}`);
        let optionValues = $.map(options, function(value, key) {{ return value }});
        //console.log(optionValues);
        if (optionValues.includes($(this).val())) {{
          $(this).prop('checked', true);

          let option_to_image = JSON.parse(`{to_json(product.option_images)}`);
//          console.log($(this).val());
//          console.log(options);
//          console.log(option_to_image);
          let image_url = option_to_image[$(this).val()];

          //console.log(image_url);
          if (image_url) {{
            $("#product-image").attr("src", image_url);
          }}
        }}
        
        // reload with updated options
        this.addEventListener("click", function() {{
          window.location.href = this.dataset.url;
        }});

      }});
    }});
  </script>
"""  # noqa: W293


def sub_page(
    session: str,
    instruction: str,
    keywords: Sequence[str],
    page: int,
    product: Product,
    options: Mapping[str, str],
    name: str,
) -> str:
    """One of the pages below a product's."""
    previous = address(session_id=session, asin=product.asin, keywords=keywords, page=page, options=dict(options))
    place, content = _sub_content(product, name)
    body = f"""{_top(session, instruction, previous)}      <div class="row top-buffer">
        <div class="col-md-12">
          <div class="row top-buffer">
            <div class="col-sm-6" name="{place}">
              <div class="card card-body">
{content}              </div>
            </div>
{_categories(product) if name == "Attributes" else ""}          </div>
        </div>
      </div>
    </div>
"""
    return _document(_PAGE_HEAD, body)


def _sub_content(product: Product, name: str) -> tuple[str, str]:
    """The name of the page's column, and what is in it."""
    if name == "Description":
        return "description", f'                <p class="product-info">{escape(product.description)}</p>\n'
    if name == "Reviews":
        return "reviews", "                \n"
    place, style, lines = (
        ("bulletpoints", "product-info", product.bullet_points)
        if name == "Features"
        else ("description", "attribute", product.attributes)
    )
    items = "".join(
        f'\n                  <li><p class="{style}"> {escape(line)}</p></li>\n                  ' for line in lines
    )
    return place, f"                <ul>\n                  {items}\n                </ul>\n"


def _categories(product: Product) -> str:
    lines = "".join(
        f"""              <div class="d-flex align-items-center justify-content-between mt-1">
                <h5 class="font-weight-bold my-2 product-{name}">{escape(value)}</h5>
              </div>
"""
        for name, value in (
            ("category", product.category),
            ("query", product.query),
            ("product_category", product.product_category),
        )
    )
    return f'            <div class="col-sm-6" name="description">\n{lines}            </div>\n'


def done_page(asin: str, options: Mapping[str, str], reward: float) -> str:
    """The page after buying."""
    body = f"""{_REFERENCE}    <div class="container" style="margin-top: 8%;">
      <div class="col-md-6 col-md-offset-3">     
        <div class="row">
          <div id="thankyou" class="text-center">
            <h1>Thank you for shopping with us!</h1>
          </div>
          <div id="stats" class="text-center">
            <h3 align="mturk_code">Your code: </h3>
            <p><pre>None</pre> (Paste it in your MTurk interface.)</p>
            <div style="display:none">
              <h2 align="left">Purchased</h2>
              <hr class="solid">
              <h4 id="asin">asin<pre>{escape(asin)}</pre></p>
              <h4 id="options">options<pre>{to_json(dict(options))}</pre></h4>
              <h4 id="purchased_attrs">attrs<pre>None</pre></h4>
              <h4 id="purchased-category">category<pre>None</pre></h4>
              <h4 id="purchased-query">query<pre>None</pre></h4>
              <h4 id="purchased-pc">product category<pre>None</pre></h4>
              <h2 align="left">Target</h2>
              <hr class="solid">
              <h4 id="goal-asin">asin<pre></pre></p>
              <h4 id="goal-options">options<pre></pre></h4>
              <h4 id="goal-attrs">attrs<pre></pre></h4>
              <h4 id="goal-price">price upper<pre></pre></h4>
              <h4 id="goal-instruction-text">instuction text<pre></pre></h4>
              <h4 id="goal-category">category<pre></pre></h4>
              <h4 id="goal-pc">product category<pre></pre></h4>
              <h4 id="goal-query">query<pre></pre></h4>
              <h4>Goal <div id="goal"><pre>None</pre></div></h4>
              <h2 align="left">Reward</h2>
            </div>
            <hr class="solid">
      \t\t\t<h3   id="reward">Your score (min 0.0, max 1.0)<pre>{reward}</pre></h3>
            <h4 hidden>Reward Details <div id="reward_info"><pre>None</pre></div></h4>
          </div>
        </div>            
      </div>
    </div>
"""  # noqa: W291
    return _document(_links(_AWESOME, _BOOTSTRAP) + _OUTER_HEAD, body)
