"""A server of decoded text: OpenAI's HTTP interface in front of an engine.

    import uvicorn
    from detok.serve.app import create_app
    from detok.serve.replay import ReplayEngine

    uvicorn.run(create_app(ReplayEngine()))

`detok serve` does this, with an engine and limits of its options. `engine.Engine` is what an engine of your own has.
A module is imported by its name; `app` needs `detok[serve]`.
"""
