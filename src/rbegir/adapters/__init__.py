"""rbegir behind the interfaces of other frameworks.

    store.py         what they share: metadata as attributes, ids as texts, filters as `where` text
    langchain.py     RbegirVectorStore for LangChain: needs the extra [langchain]
    llamaindex.py    RbegirVectorStore for LlamaIndex: needs the extra [llamaindex]

Both work over an `rbegir.Index` or an `rbegir.Client`. Texts are encoded by the model of the index, so no
embedding model of the framework takes part.
"""
