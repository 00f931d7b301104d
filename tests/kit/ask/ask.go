// Package ask sends requests and reads complete responses.
package ask

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// Reply is a response that was read to its end.
type Reply struct {
	// Code, Header and Body are the response's.
	Code   int
	Header http.Header
	Body   string
}

// Do sends a request and returns the response. An empty body or a nil header means none; a body is
// JSON unless the header says otherwise.
func Do(ctx context.Context, c *http.Client, method, url string, header http.Header, body string) (Reply, error) {
	res, err := send(ctx, c, method, url, header, body)
	if err != nil {
		return Reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return Reply{res.StatusCode, res.Header, string(text)}, err
}

func send(ctx context.Context, c *http.Client, method, url string, header http.Header, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, header)
	return c.Do(req)
}

// Only returns HTTP/2 alone, or HTTP/1.1 alone, as a transport's protocols.
func Only(http2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	return p
}

// Bearer returns the header of a bearer token. It is nil for an empty token.
func Bearer(token string) http.Header {
	if token == "" {
		return nil
	}
	return http.Header{"Authorization": {"Bearer " + token}}
}

// Open requests a stream, such as a watch, and returns after its head. The caller closes the body.
// Any status but 200 is an error that begins with the status.
func Open(ctx context.Context, c *http.Client, url string, header http.Header) (*http.Response, error) {
	res, err := send(ctx, c, http.MethodGet, url, header, "")
	if err != nil || res.StatusCode == http.StatusOK {
		return res, err
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	return nil, fmt.Errorf("%s: %s: %s", res.Status, url, text)
}

// Get is Open for a response that ends: it returns the whole body.
func Get(ctx context.Context, c *http.Client, url string) (string, error) {
	res, err := Open(ctx, c, url, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// Serves sends a GET, and returns an error unless the status is 200.
func Serves(ctx context.Context, c *http.Client, url string) error {
	_, err := Get(ctx, c, url)
	return err
}

// Metrics returns the values of a server's series, by name and labels as printed.
func Metrics(ctx context.Context, c *http.Client, server string) (map[string]float64, error) {
	text, err := Get(ctx, c, server+"/metrics")
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		name := strings.TrimSpace(line)
		if i := strings.LastIndexByte(name, ' '); i > 0 && name[0] != '#' {
			if v, err := strconv.ParseFloat(name[i+1:], 64); err == nil {
				series[name[:i]] = v
			}
		}
	}
	return series, err
}

// JSON decodes a response of a local server without TLS.
func JSON(ctx context.Context, url string, into any) error {
	text, err := Get(ctx, new(http.Client), url)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}
