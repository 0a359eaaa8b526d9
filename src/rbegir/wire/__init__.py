"""The messages between a search service and its clients, each written and read in one place.

    search      a search: the request as JSON, the hits as JSON or as an Arrow stream
    problems    errors: RFC 9457 documents
    schema      every body as a pydantic model, for validation and the OpenAPI document (the service only)

The options of a search are defined once, in `rbegir.search.request`. Nothing here does input or output, and
nothing but `schema` needs more than NumPy and pyarrow.
"""
