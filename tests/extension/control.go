package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Control is the server's Go API over HTTP, for when it runs in another process. It has no
// authentication: loopback only.
//
//	GET    /requests?since=N   the remembered requests
//	DELETE /requests           forget them
//	GET    /faults             what is switched on
//	PUT    /faults             replace it: a list of Fault
//	POST   /events             send an Event to the watches
//	GET    /stats              Stats
//	GET    /ca                 what belongs into caBundle, as PEM
func (s *Server) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		since, _ := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
		writeJSON(w, http.StatusOK, "application/json", s.Requests(since))
	})
	mux.HandleFunc("DELETE /requests", func(http.ResponseWriter, *http.Request) { s.Forget() })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", s.Faults())
	})
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) {
		accept(w, r, func(list []Fault) error { return s.Set(list...) })
	})
	mux.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) { accept(w, r, s.Emit) })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, "application/json", s.Stats())
	})
	mux.HandleFunc("GET /ca", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(s.CA.PEM()) })
	return mux
}

// accept decodes a body of at most 1 MiB and hands it to f.
func accept[T any](w http.ResponseWriter, r *http.Request, f func(T) error) {
	var v T
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&v)
	if err == nil {
		err = f(v)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// Client is the Go API of a server in another process.
type Client struct {
	// URL is where its Control is served, such as http://127.0.0.1:1234.
	URL string
	// HTTP makes the requests. Nil: a new client per request.
	HTTP *http.Client
}

// Set replaces all faults.
func (c *Client) Set(ctx context.Context, list ...Fault) error {
	if list == nil {
		list = []Fault{}
	}
	return c.do(ctx, http.MethodPut, "/faults", list, nil)
}

// Requests returns the remembered requests with a Seq above since, oldest first.
func (c *Client) Requests(ctx context.Context, since int64) ([]Request, error) {
	var out []Request
	err := c.do(ctx, http.MethodGet, "/requests?since="+strconv.FormatInt(since, 10), nil, &out)
	return out, err
}

// Forget forgets all requests.
func (c *Client) Forget(ctx context.Context) error {
	return c.do(ctx, http.MethodDelete, "/requests", nil, nil)
}

// Emit sends an event to the watches.
func (c *Client) Emit(ctx context.Context, e Event) error {
	return c.do(ctx, http.MethodPost, "/events", e, nil)
}

// Stats is what the server has seen.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var out Stats
	err := c.do(ctx, http.MethodGet, "/stats", nil, &out)
	return out, err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := c.HTTP
	if client == nil {
		transport := &http.Transport{DisableKeepAlives: true}
		client = &http.Client{Transport: transport}
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, bytes.TrimSpace(text))
	}
	if out == nil {
		return nil
	}
	// A thousand requests with 64 KiB of header each.
	return json.NewDecoder(io.LimitReader(res.Body, 128<<20)).Decode(out)
}
