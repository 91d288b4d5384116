// Swagger UI over our own OpenAPI document; its files come from this server too.

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  validatorUrl: null, // asks another host otherwise
  requestInterceptor: (request) => {
    const key = sessionStorage.getItem("dsearch-key"); // kept by the page when it is asked for one
    if (key) request.headers.Authorization ??= `Bearer ${key}`;
    return request;
  },
});
