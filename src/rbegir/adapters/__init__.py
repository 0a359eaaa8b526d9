"""rbegir behind the interfaces of other frameworks.

    store.py         what they share: metadata as attributes, ids as texts, filters as `where` text
    langchain.py     RbegirVectorStore for LangChain: needs the extra [langchain]
    llamaindex.py    RbegirVectorStore for LlamaIndex: needs the extra [llamaindex]
    mcp.py           an MCP server for assistants: `rbegir mcp INDEX`

Both vector stores work over an `rbegir.Index` or an `rbegir.Client` whose model encodes texts, or keep the
vectors of an embedding of the framework as codes of a Binarizer.
"""
